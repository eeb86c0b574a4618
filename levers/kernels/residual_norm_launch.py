"""The launches of :mod:`.residual_norm_triton`: one forward, one to three backward."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from levers.kernels.residual_norm_triton import residual_norm_backward, residual_norm_forward
from levers.kernels.row_blocks_triton import (
    block_width,
    slot_count,
    sum_partials,
    with_unit_stride,
)


@dataclass(frozen=True, slots=True)
class Cut:
    """How the rows are dealt out.

    Attributes:
        rows: of one program.
        elements: channels of one warp.
    """

    rows: int
    elements: int

    def warps(self, block: int) -> int:
        """Of a program that is so many channels wide."""
        return max(1, min(16, block // self.elements))


FORWARD = Cut(8, 512)
"""4,104 programs of 4 warps at 32,768 rows in 8 samples and 2048 channels (1536 padded): loads of
16 bytes, two rows of 3 KB in flight a program."""

BACKWARD = Cut(32, 256)
"""1,032 programs of 8 warps: a thread has 8 channels, for which it holds 3 fp32 sums, scale and
gate, and 4 rows in flight. Fewer rows make the partials a noticeable share of the bytes."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that the kernels multiply and add with.

    Attributes:
        gate_BC: by sample, or None where there is no gate.
        scale: by sample ``[B, C]``, the factor being 1 + scale; or one row ``[C]``, the factor.
        shift: shaped as the scale.
        cu_seqlens: int32 [B + 1].
    """

    gate_BC: Tensor | None
    scale: Tensor
    shift: Tensor
    cu_seqlens: Tensor

    @property
    def by_sample(self) -> bool:
        """Whether the norm is modulated, and not affine."""
        return self.scale.dim() == 2

    @property
    def samples(self) -> int:
        """B."""
        return len(self.cu_seqlens) - 1

    def with_unit_strides(self) -> Rows:
        """The same with adjacent channels."""
        gate_BC = None if self.gate_BC is None else with_unit_stride(self.gate_BC)
        return Rows(gate_BC, _unit(self.scale), _unit(self.shift), self.cu_seqlens)


def _unit(rows: Tensor) -> Tensor:
    return with_unit_stride(rows if rows.dim() == 2 else rows[None]).view(rows.shape)


def _step(rows: Tensor | None) -> int:
    """Elements from one sample's row to the next one's."""
    return 0 if rows is None or rows.dim() == 1 else rows.stride(0)


def forward_triton(
    x_NC: Tensor, h_NC: Tensor, by: Rows, *, eps: float, dtype: torch.dtype, cut: Cut = FORWARD
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One launch: the normed rows in ``dtype``, the sum in that of ``x_NC``, means and deviations.

    The last two are fp32 ``[N]``; deviations are reciprocal.
    """
    x_NC, h_NC = with_unit_stride(x_NC), with_unit_stride(h_NC)
    by = by.with_unit_strides()
    rows, channels = x_NC.shape
    block = block_width(channels)
    out_NC = x_NC.new_empty((rows, channels))
    y_NC = x_NC.new_empty((rows, channels), dtype=dtype)
    mean_N, rstd_N = x_NC.new_empty((2, rows), dtype=torch.float32)
    residual_norm_forward[(slot_count(rows, by.samples, cut.rows),)](
        x_NC,
        h_NC,
        by.scale if by.gate_BC is None else by.gate_BC,
        by.scale,
        by.shift,
        out_NC,
        y_NC,
        mean_N,
        rstd_N,
        by.cu_seqlens,
        rows,
        by.samples,
        channels,
        x_NC.stride(0),
        h_NC.stride(0),
        _step(by.gate_BC),
        _step(by.scale),
        _step(by.shift),
        eps,
        ROWS=cut.rows,
        BLOCK_B=block_width(by.samples),
        BLOCK=block,
        GATED=by.gate_BC is not None,
        PLUS_ONE=by.by_sample,
        EXACT=dtype == torch.float32,
        num_warps=cut.warps(block),
    )
    return y_NC, out_NC, mean_N, rstd_N


@dataclass(frozen=True, slots=True)
class Gradients:
    """What a backward gives; None is what was not asked for.

    Attributes:
        dx, dh: of stream and branch; one tensor where there is no gate.
        dgate, dscale, dshift: shaped and typed as what they belong to.
    """

    dx: Tensor
    dh: Tensor
    dgate: Tensor | None = None
    dscale: Tensor | None = None
    dshift: Tensor | None = None


def backward_triton(
    grads: tuple[Tensor, Tensor | None],
    saved: tuple[Tensor, Tensor, Tensor, Tensor],
    by: Rows,
    *,
    sums: bool,
    cut: Cut = BACKWARD,
) -> Gradients:
    """All gradients in two or three launches, those of the rows alone in one without ``sums``.

    The gate's sums need the branch's rows, which are not read without them.

    Args:
        grads: of the normed rows, and of the stream that goes on, if it was used.
        saved: the sum ``[N, C]``, contiguous, the branch, means and reciprocal deviations.
        by: the rows of the forward.
        sums: whether a gate, a scale or a shift is trained.
        cut: how the rows are dealt out.
    """
    out_NC, h_NC, mean_N, rstd_N = saved
    grad_NC, h_NC = with_unit_stride(grads[0]), with_unit_stride(h_NC)
    beside_NC = grad_NC if grads[1] is None else with_unit_stride(grads[1])
    by, gated = by.with_unit_strides(), by.gate_BC is not None
    rows, channels = out_NC.shape
    block, slots = block_width(channels), slot_count(rows, by.samples, cut.rows)
    dx_NC = out_NC.new_empty((rows, channels))
    dh_NC = torch.empty_like(dx_NC) if gated else dx_NC
    shape = (3 if gated else 2, slots if sums else 0, channels)
    partial_KPC = out_NC.new_empty(shape, dtype=torch.float32)
    residual_norm_backward[(slots,)](
        grad_NC,
        beside_NC,
        out_NC,
        h_NC,
        mean_N,
        rstd_N,
        by.scale if by.gate_BC is None else by.gate_BC,
        by.scale,
        dx_NC,
        dh_NC,
        partial_KPC[0],
        partial_KPC[1],
        partial_KPC[-1],
        by.cu_seqlens,
        rows,
        by.samples,
        channels,
        grad_NC.stride(0),
        beside_NC.stride(0),
        h_NC.stride(0),
        _step(by.gate_BC),
        _step(by.scale),
        ROWS=cut.rows,
        BLOCK_B=block_width(by.samples),
        BLOCK=block,
        GATED=gated,
        PLUS_ONE=by.by_sample,
        STREAM=grads[1] is not None,
        SUMS=sums,
        EXACT=out_NC.dtype == torch.float32,
        num_warps=cut.warps(block),
    )
    if not sums:
        return Gradients(dx_NC, dh_NC)
    return Gradients(dx_NC, dh_NC, *_summed(partial_KPC, by, rows, cut.rows))


def _summed(
    partial_KPC: Tensor, by: Rows, rows: int, rows_of_block: int
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Gradients of gate, scale and shift from the partials: in one launch if all share a dtype.

    The affine norm's are sums over every slot, where an empty one has zeros.
    """
    cu, samples = by.cu_seqlens, by.samples

    def by_samples(partials: Tensor, dtype: torch.dtype) -> Tensor:
        return sum_partials(partials, cu, rows, samples, rows_of_block, dtype)

    gate = by.gate_BC
    if by.by_sample and (gate is None or gate.dtype == by.scale.dtype):
        dscale, dshift, *dgates = by_samples(partial_KPC, by.scale.dtype)
        return (dgates[0] if dgates else None), dscale, dshift
    dgate = None if gate is None else by_samples(partial_KPC[2:], gate.dtype)[0]
    if by.by_sample:
        dscale, dshift = by_samples(partial_KPC[:2], by.scale.dtype)
    else:
        slots = partial_KPC.shape[1]
        every = (None, slots * rows_of_block, 1, rows_of_block, by.scale.dtype)
        dscale, dshift = sum_partials(partial_KPC[:2], *every)[:, 0]
    return dgate, dscale, dshift
