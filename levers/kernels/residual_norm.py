"""``x + h * gate`` (or ``x + h``) and the LayerNorm of that sum, as one operation each way.

Shapes: B samples, N packed rows, C channels. The norm is modulated (``n (1 + scale) + shift`` with
rows by sample) or affine (weight and bias). The stream that goes on is the sum, rounded once to its
dtype, and the norm is of that rounded sum: what :mod:`.gate_residual` and :mod:`.modulate` (or
:mod:`.affine_norm`) compute one after the other.

With ``s`` the sum, ``dn`` the norm's and ``ds`` the stream's gradient, the backward is
``dx = norm'(dn) + ds`` in fp32, rounded once; ``dh = dx gate``; and over a sample's rows
``dgate = sum(dx h)``, ``dscale = sum(dn n)`` and ``dshift = sum(dn)`` in fp32, rounded once (those
of weight and bias over all rows). Kept are the sum, two fp32 values a row and, with a gate, the
branch. See :mod:`.row_norm`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from levers.kernels.row_norm import (
    EPS,
    RowNorm,
    expect_absent_gradients,
    next_dtype,
    samples_of,
)
from levers.kernels.segment_sum import Segments, accumulate_dtype

Gradients = tuple[Tensor | None, ...]
"""Of stream, branch, gate, shift and scale."""


def _sum_plain(x_NC: Tensor, h_NC: Tensor, gate_BC: Tensor | None, segments: Segments) -> Tensor:
    if gate_BC is None:
        return x_NC + h_NC
    wide, out_NC = accumulate_dtype(x_NC.dtype), torch.empty_like(x_NC)
    for b, rows in samples_of(segments.offsets):
        gate = gate_BC[b].to(wide)
        out_NC[rows] = torch.addcmul(x_NC[rows].to(wide), h_NC[rows].to(wide), gate)
    return out_NC


def _branch_plain(
    dx_NC: Tensor, h_NC: Tensor, gate_BC: Tensor, segments: Segments
) -> tuple[Tensor, Tensor]:
    """Gradients of branch and gate."""
    wide, dh_NC = accumulate_dtype(h_NC.dtype), torch.empty_like(h_NC)
    sums_BC = torch.zeros_like(gate_BC, dtype=wide)
    for b, rows in samples_of(segments.offsets):
        dx = dx_NC[rows].to(wide)
        dh_NC[rows] = dx * gate_BC[b].to(wide)
        sums_BC[b] = (dx * h_NC[rows].to(wide)).sum(0)
    return dh_NC, sums_BC.to(gate_BC.dtype)


def _branch(
    dx_NC: Tensor, h_NC: Tensor, gate_BC: Tensor | None, segments: Segments, *, sums: bool
) -> tuple[Tensor, Tensor | None]:
    """The same on any device; a branch without a gate takes the stream's gradient itself."""
    if gate_BC is None:
        return dx_NC, None
    if dx_NC.device.type == "cuda":
        from levers.kernels.gate_residual_triton import backward_triton

        return backward_triton(dx_NC, h_NC, gate_BC, segments.cu_seqlens, sums=sums)
    return _branch_plain(dx_NC, h_NC, gate_BC, segments)


def _norm_of(scale: Tensor, segments: Segments) -> RowNorm:
    return RowNorm(segments, plus_one=True) if scale.dim() == 2 else RowNorm(None, plus_one=False)


class FusedResidualNorm(torch.autograd.Function):
    """The sum and its norm; the backward is one pass over the rows."""

    @staticmethod
    def forward(
        ctx: Any,
        x_NC: Tensor,
        h_NC: Tensor,
        gate_BC: Tensor | None,
        shift: Tensor,
        scale: Tensor,
        segments: Segments,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        """The normed rows in ``dtype``, and the sum to go on with, ``[N, C]`` each."""
        expect_absent_gradients(ctx)
        ctx.segments = segments
        if x_NC.device.type == "cuda":
            from levers.kernels.residual_norm_launch import Rows, forward_triton

            by = Rows(gate_BC, scale, shift, segments.cu_seqlens)
            y_NC, out_NC, mean_N, rstd_N = forward_triton(x_NC, h_NC, by, eps=EPS, dtype=dtype)
        else:
            out_NC = _sum_plain(x_NC, h_NC, gate_BC, segments)
            rows = scale.view(-1, scale.shape[-1]), shift.view(-1, shift.shape[-1])
            y_NC, mean_N, rstd_N = _norm_of(scale, segments).forward(out_NC, *rows, dtype)
        branch = None if gate_BC is None else h_NC
        ctx.save_for_backward(out_NC, branch, gate_BC, mean_N, rstd_N, scale, shift)
        return y_NC, out_NC

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Gradients:
        """Of stream, branch, gate, shift and scale."""
        grad_NC, stream_NC = grads
        trained = any(ctx.needs_input_grad[2:5])
        if grad_NC is None:
            found = _of_the_sum_alone(ctx, stream_NC, sums=trained)
        elif grad_NC.device.type == "cuda":
            found = _by_one_kernel(ctx, (grad_NC, stream_NC), sums=trained)
        else:
            found = _backward_plain(ctx, grad_NC, stream_NC, sums=trained)
        return *found, None, None


def _of_the_sum_alone(ctx: Any, stream_NC: Tensor | None, *, sums: bool) -> Gradients:
    """Nothing used the normed rows: what is left is the residual."""
    _, h_NC, gate_BC, *_ = ctx.saved_tensors
    if stream_NC is None:
        return None, None, None, None, None
    dh_NC, dgate = _branch(stream_NC, h_NC, gate_BC, ctx.segments, sums=sums)
    return stream_NC, dh_NC, dgate, None, None


def _by_one_kernel(ctx: Any, grads: tuple[Tensor, Tensor | None], *, sums: bool) -> Gradients:
    from levers.kernels.residual_norm_launch import Rows, backward_triton

    out_NC, h_NC, gate_BC, mean_N, rstd_N, scale, shift = ctx.saved_tensors
    by = Rows(gate_BC, scale, shift, ctx.segments.cu_seqlens)
    branch = out_NC if h_NC is None else h_NC
    found = backward_triton(grads, (out_NC, branch, mean_N, rstd_N), by, sums=sums)
    return found.dx, found.dh, found.dgate, found.dshift, found.dscale


def _backward_plain(
    ctx: Any, grad_NC: Tensor, stream_NC: Tensor | None, *, sums: bool
) -> Gradients:
    out_NC, h_NC, gate_BC, mean_N, rstd_N, scale, _ = ctx.saved_tensors
    saved = (out_NC, mean_N, rstd_N, scale.view(-1, scale.shape[-1]))
    norm = _norm_of(scale, ctx.segments)
    dx_NC, dscale, dshift = norm.backward(grad_NC, stream_NC, saved, sums=sums)
    assert dx_NC is not None
    dh_NC, dgate = _branch(dx_NC, h_NC, gate_BC, ctx.segments, sums=sums)
    if dscale is None or dshift is None:
        return dx_NC, dh_NC, None, None, None
    return dx_NC, dh_NC, dgate, dshift.view_as(scale), dscale.view_as(scale)


def residual_norm_to(
    x_NC: Tensor,
    h_NC: Tensor,
    gate_BC: Tensor | None,
    shift: Tensor,
    scale: Tensor,
    segments: Segments,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The norm of the sum in a dtype of choice, and the sum to go on with, ``[N, C]`` each.

    Args:
        x_NC: the stream.
        h_NC: what a branch adds to it.
        gate_BC: a factor of the branch by sample, or None.
        shift: rows by sample ``[B, C]`` of a modulation, or a bias ``[C]``.
        scale: rows by sample of a modulation, whose factor is ``1 + scale``, or a weight ``[C]``.
        segments: which rows are a sample's.
        dtype: of the normed rows.

    Raises:
        TypeError: stream and branch, or shift and scale, differ in dtype: the gradient of one is
            computed with that of the other.
    """
    if x_NC.dtype != h_NC.dtype:
        raise TypeError(f"x is {x_NC.dtype} and h {h_NC.dtype}; use one dtype")
    if shift.dtype != scale.dtype:
        raise TypeError(f"shift is {shift.dtype} and scale {scale.dtype}; use one dtype")
    found = FusedResidualNorm.apply(x_NC, h_NC, gate_BC, shift, scale, segments, dtype)  # type: ignore[no-untyped-call]
    y_NC, out_NC = found
    return y_NC, out_NC


def residual_norm(
    x_NC: Tensor,
    h_NC: Tensor,
    gate_BC: Tensor | None,
    shift: Tensor,
    scale: Tensor,
    segments: Segments,
) -> tuple[Tensor, Tensor]:
    """The norm of the sum in the dtype of the next Linear, and the sum, ``[N, C]`` each."""
    return residual_norm_to(x_NC, h_NC, gate_BC, shift, scale, segments, next_dtype(x_NC))
