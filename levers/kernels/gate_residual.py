"""``x + h * gate`` with gate rows by sample, rounded once, as one operation.

Shapes: B samples, N packed rows, C channels. The original rounds after the product and after the
sum. The backward is one pass over the result's gradient ``dy``: ``dx`` is ``dy`` itself,
``dh = dy gate``, and ``dgate = sum(dy h)`` over a sample's rows is summed in fp32 and rounded once.
Only ``h`` and the gate are kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from levers.kernels.row_norm import samples_of
from levers.kernels.segment_sum import Segments, accumulate_dtype


def _forward_plain(x_NC: Tensor, h_NC: Tensor, gate_BC: Tensor, segments: Segments) -> Tensor:
    wide = accumulate_dtype(x_NC.dtype)
    gate_BC, out_NC = gate_BC.to(wide), torch.empty_like(x_NC)
    for b, rows in samples_of(segments.offsets):
        out_NC[rows] = torch.addcmul(x_NC[rows].to(wide), h_NC[rows].to(wide), gate_BC[b])
    return out_NC


def _backward_plain(
    grad_NC: Tensor, h_NC: Tensor, gate_BC: Tensor, segments: Segments, *, sums: bool
) -> tuple[Tensor, Tensor | None]:
    wide = accumulate_dtype(h_NC.dtype)
    dh_NC = torch.empty_like(h_NC)
    wide_gate_BC, sums_BC = gate_BC.to(wide), torch.zeros_like(gate_BC, dtype=wide)
    for b, rows in samples_of(segments.offsets):
        grad = grad_NC[rows].to(wide)
        dh_NC[rows] = grad * wide_gate_BC[b]
        if sums:
            sums_BC[b] = (grad * h_NC[rows]).sum(0)
    return dh_NC, sums_BC.to(gate_BC.dtype) if sums else None


class FusedGateResidual(torch.autograd.Function):
    """The gated sum; its backward writes ``h``'s gradient and sums the gate's in one pass."""

    @staticmethod
    def forward(
        ctx: Any, x_NC: Tensor, h_NC: Tensor, gate_BC: Tensor, segments: Segments
    ) -> Tensor:
        """``[N, C]`` in the dtype of ``x_NC``."""
        ctx.segments = segments
        ctx.save_for_backward(h_NC, gate_BC)
        if x_NC.is_cuda:
            from levers.kernels.gate_residual_triton import forward_triton

            return forward_triton(x_NC, h_NC, gate_BC, segments.cu_seqlens)
        return _forward_plain(x_NC, h_NC, gate_BC, segments)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Of ``x`` (the gradient itself), ``h`` and gate."""
        h_NC, gate_BC = ctx.saved_tensors
        trained = ctx.needs_input_grad[2]
        if h_NC.is_cuda:
            from levers.kernels.gate_residual_triton import backward_triton

            cu_seqlens = ctx.segments.cu_seqlens
            dh, dgate = backward_triton(grads[0], h_NC, gate_BC, cu_seqlens, sums=trained)
        else:
            dh, dgate = _backward_plain(grads[0], h_NC, gate_BC, ctx.segments, sums=trained)
        return grads[0], dh, dgate, None


def gate_residual(x_NC: Tensor, h_NC: Tensor, gate_BC: Tensor, segments: Segments) -> Tensor:
    """``x + h * gate``, ``[N, C]``.

    Raises:
        TypeError: ``x`` and ``h`` differ in dtype; the gradient of one is that of the sum.
    """
    if x_NC.dtype != h_NC.dtype:
        raise TypeError(f"x is {x_NC.dtype} and h {h_NC.dtype}; use one dtype")
    out_NC: Tensor = FusedGateResidual.apply(x_NC, h_NC, gate_BC, segments)  # type: ignore[no-untyped-call]
    return out_NC
