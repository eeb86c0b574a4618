"""Residual add and RMS norm of a decoder's stream as one operation, bit for bit the unfused one.

Shapes: N tokens, C channels. The unfused operation adds in the stream's dtype and rounds, then
squares, sums and scales in fp32, multiplies by the weight in fp32, and rounds once. So does this.
On CUDA it is one Triton launch that sums in PyTorch's order. On a CPU no fused kernel is faster
than PyTorch's composite of vectorised passes; there the norm is called without the checks of its
Python wrapper.
"""

from __future__ import annotations

import torch
from torch import Tensor


class AddNorm:
    """The fused operation; ``early`` makes its launch a programmatic dependent one.

    Attributes:
        ran: what the last call launched.
    """

    def __init__(self, *, early: bool = False) -> None:
        self._early = early
        self.ran = ""

    def __call__(
        self, x_NC: Tensor, delta_NC: Tensor, weight_C: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """``(x + delta, rms_norm(x + delta) * weight)``, ``[N, C]``; no input is written to.

        Raises:
            TypeError: stream, addend and weight differ in dtype.
        """
        if not x_NC.dtype == delta_NC.dtype == weight_C.dtype:
            raise TypeError(
                f"stream {x_NC.dtype}, addend {delta_NC.dtype} and weight {weight_C.dtype} "
                "differ; use one dtype"
            )
        if x_NC.device.type == "cuda":
            from levers.kernels.add_norm_triton import add_norm_triton

            found = add_norm_triton(x_NC, delta_NC, weight_C, eps, early=self._early)
            self.ran = "triton add_norm"
            return found
        sum_NC = x_NC + delta_NC
        normed_NC = torch.rms_norm(sum_NC, (sum_NC.shape[-1],), weight_C, eps)
        self.ran = "torch rms_norm"
        return sum_NC, normed_NC
