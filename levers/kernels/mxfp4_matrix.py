"""A matrix in MXFP4 as it stands in for a tensor: its bytes, its products, how it is made.

Shapes: N rows of activations, E outputs, C inputs (a multiple of 32); see :mod:`.mxfp4`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from levers.kernels.mxfp4 import (
    BLOCK,
    PLANES,
    dequantise_torch,
    element_codes,
    pack,
    plane_width,
    refusal,
)

CHUNK_ELEMENTS = 1 << 22
"""Elements that are quantised at once: an fp64 temporary of a chunk is 34 MB."""

PACKED_ROWS = 64
"""Rows up to which the packed weights are multiplied directly on CUDA; more go to bf16 first."""
PACKED_PLANE = 16
"""Narrowest plane that one product on tensor cores sums; inputs that are a multiple of 128."""


@dataclass(frozen=True, slots=True)
class Mxfp4Weight:
    """A matrix ``[E, C]`` in MXFP4, as it stands in for a tensor in a Linear.

    Attributes:
        words_EW: int32 [E, C / 8], laid out in planes.
        scales_EG: uint8 [E, C / 32], E8M0 codes in the order of the blocks.
        tickets: int32 zeros on the device, one for 16 outputs; the kernels that split the inputs
            count arrivals there and leave zeros behind. Two streams may not multiply by one matrix
            at the same time.
    """

    words_EW: Tensor
    scales_EG: Tensor
    tickets: Tensor = field(repr=False)

    @property
    def shape(self) -> torch.Size:
        """Outputs and inputs, as of the tensor that was quantised."""
        return torch.Size((self.words_EW.shape[0], self.words_EW.shape[1] * PLANES))

    @property
    def device(self) -> torch.device:
        """Where the words live."""
        return self.words_EW.device

    @property
    def nbytes(self) -> int:
        """Bytes that are kept: words, scales and tickets."""
        return sum(one.nbytes for one in (self.words_EW, self.scales_EG, self.tickets))

    def dequantise(self, dtype: torch.dtype) -> Tensor:
        """The quantised weights ``[E, C]``; exact in bf16 and wider where the scale is in range."""
        if self.device.type == "cuda":
            from levers.kernels.mxfp4_dequantise_triton import dequantise_triton

            return dequantise_triton(self, dtype)
        return dequantise_torch(self.words_EW, self.scales_EG, dtype)

    def packed(self, x_NC: Tensor) -> bool:
        """Whether the kernel multiplies these rows by the packed weights."""
        few = x_NC.device.type == "cuda" and x_NC.shape[0] <= PACKED_ROWS
        return few and plane_width(self.shape[1]) >= PACKED_PLANE

    def linear(
        self, x_NC: Tensor, bias_E: Tensor | None = None, residual_NE: Tensor | None = None
    ) -> Tensor:
        """``x W^T (+ bias) (+ residual)`` in the dtype of ``x``; leading dimensions are kept.

        Up to 64 rows on CUDA one kernel reads the packed weights and adds what is to be added; more
        rows, and every other device, multiply by the dequantised matrix.
        """
        rows_NC = x_NC.reshape(-1, x_NC.shape[-1])
        if self.packed(rows_NC):
            from levers.kernels.mxfp4_launch import Epilogue, product

            out_NE = product(rows_NC, self, Epilogue(bias_E, residual_NE))
        else:
            out_NE = functional.linear(rows_NC, self.dequantise(x_NC.dtype), bias_E)
            out_NE = out_NE if residual_NE is None else out_NE + residual_NE.reshape(out_NE.shape)
        return out_NE.view(*x_NC.shape[:-1], self.shape[0])

    def fused_linear(self, x_NC: Tensor, norm: Any, swiglu: bool) -> Tensor:
        """``act(norm(x + delta) W^T)`` of rows ``[N, C]``: add and norm in one launch, then one.

        The form in which a fused block asks a matrix that is stored in a way of its own; ``norm``
        is None or has ``weight_C``, ``eps``, the addend ``delta_NC`` or None, and ``sum_NC``, where
        the sum is written, or None.
        """
        if norm is not None:
            x_NC = self._normed(x_NC, norm)
        return self.swiglu(x_NC) if swiglu else self.linear(x_NC)

    def _normed(self, x_NC: Tensor, norm: Any) -> Tensor:
        if x_NC.device.type == "cuda":
            from levers.kernels.mxfp4_norm_triton import stream_norm_triton

            return stream_norm_triton(x_NC, norm.delta_NC, norm.weight_C, norm.eps, norm.sum_NC)
        stream_NC = x_NC if norm.delta_NC is None else x_NC + norm.delta_NC
        if norm.sum_NC is not None:
            norm.sum_NC.copy_(stream_NC)
        return torch.rms_norm(stream_NC, (x_NC.shape[-1],), norm.weight_C, norm.eps)

    def swiglu(self, x_NC: Tensor) -> Tensor:
        """``silu(gate) * up`` of a matrix of gate rows and then up rows, ``[N, E / 2]``."""
        rows_NC = x_NC.reshape(-1, x_NC.shape[-1])
        if self.packed(rows_NC):
            from levers.kernels.mxfp4_launch import Epilogue, product

            out_NI = product(rows_NC, self, Epilogue(gate=True))
        else:
            gate_NI, up_NI = self.linear(rows_NC).chunk(2, dim=-1)
            out_NI = functional.silu(gate_NI) * up_NI
        return out_NI.view(*x_NC.shape[:-1], self.shape[0] // 2)


def quantise(weight_EC: Tensor) -> Mxfp4Weight:
    """Quantise a matrix, a chunk of rows at a time.

    Raises:
        ValueError: a matrix that :func:`refusal` names a reason for.
    """
    reason = refusal(weight_EC)
    if reason:
        raise ValueError(f"{reason}; leave the matrix as it is")
    outputs, inputs = weight_EC.shape
    width, device = plane_width(inputs), weight_EC.device
    words_EW = torch.empty((outputs, inputs // PLANES), dtype=torch.int32, device=device)
    scales_EG = torch.empty((outputs, inputs // BLOCK), dtype=torch.uint8, device=device)
    for rows in _chunks(outputs, inputs):
        codes, scales_EG[rows] = element_codes(weight_EC[rows])
        words_EW[rows] = pack(codes, width)
    tickets = torch.zeros(-(-outputs // 16), dtype=torch.int32, device=device)
    return Mxfp4Weight(words_EW, scales_EG, tickets)


def _chunks(outputs: int, inputs: int) -> Iterator[slice]:
    step = max(1, CHUNK_ELEMENTS // inputs)
    for first in range(0, outputs, step):
        yield slice(first, min(first + step, outputs))
