"""Launches of the MXFP4 product: how a shape is cut into programs, and the call.

What the cut is reasoned from: an H200 has 132 SMs and reads 4.3 TB/s at a latency of about 0.7 us,
so that 3 MB, 23 KB an SM, must be on their way at any time. The matrices of a decoder are so small
(29 units of 1.1 KB an SM for the 6144 x 2560 of a 4 B model) that a warp has few units, and how
many of them it asks for before it waits decides the time, since each wait is 0.7 us. So all of a
program's inputs are divided over its warps, whose depth is chosen with their number; a further warp
costs set-up and a place in the sum. More tiles a program share the activations' loads and give up
programs.

The cut of a shape is measured (:mod:`.mxfp4_plans_h200`, ``benchmarks/mxfp4_gemv.py --variants``)
or, for other shapes, computed from the shape alone: nothing is tuned while something is timed.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from levers.kernels.mxfp4_layout import TILE_OUTPUTS, UNIT_INPUTS
from levers.kernels.mxfp4_matrix import PACKED_ROWS, Mxfp4Weight
from levers.kernels.mxfp4_norm_triton import dependent_launches
from levers.kernels.mxfp4_plans import Plan, plan_of
from levers.kernels.mxfp4_triton import unit_product

COLUMNS = (8, 16, 32)
"""Padded rows; 8 is the narrower side of a tensor core's product (mma m16n8k16)."""

MOST_WARPS = 15
"""Each has a barrier of its own, of the 16 of a program."""

EARLY = {"": 0, "start": 1, "end": 2}
"""When a program lets the next launch begin: not at all, at its own start, after its products."""

LAST_OLDER, LAST_QUAD = (3, 6), (3, 7)
"""The last Tritons that lay tensors and operands out as they did (:mod:`.mxfp4_decode_triton`)."""


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What becomes of the sums before they are rounded and written.

    Attributes:
        bias_E: added to each row.
        residual_NE: added.
        squares_TN: fp32, one row for each program along the outputs, where the sums of the rounded
            outputs' squares are left.
        gate: the matrix is gate rows and then as many up rows; the result is ``silu(gate) * up``.
    """

    bias_E: Tensor | None = None
    residual_NE: Tensor | None = None
    squares_TN: Tensor | None = None
    gate: bool = False

    def of_rows(self, rows: slice) -> Epilogue:
        """The part for some rows."""
        residual_NE = None if self.residual_NE is None else self.residual_NE[rows]
        return Epilogue(self.bias_E, residual_NE, None, self.gate)


def product(
    x_NC: Tensor, weight: Mxfp4Weight, epilogue: Epilogue, plan: Plan | None = None
) -> Tensor:
    """``x W^T`` of at most 64 rows with its epilogue, ``[N, E]`` (half as wide where gated).

    Args:
        x_NC: bf16, or fp32 under Triton's interpreter.
        weight: the matrix; gated, of whole tiles of gate and of up rows.
        epilogue: what is done with the sums; what is rounded once is the final result.
        plan: another cut than the table's.

    Raises:
        ValueError: rows, a gate, a cut or a place for squares that the kernel does not take.
    """
    x_NC = x_NC if x_NC.stride(-1) == 1 else x_NC.contiguous()
    rows = x_NC.shape[0]
    outputs = weight.outputs // 2 if epilogue.gate else weight.outputs
    plan = plan or plan_of(outputs, weight.inputs, min(rows, COLUMNS[-1]), gate=epilogue.gate)
    _check(x_NC, weight, epilogue, plan.programs(outputs))
    if plan.warps > MOST_WARPS:
        raise ValueError(f"{plan.warps} warps a program; the kernel takes up to {MOST_WARPS}")
    out_NE = x_NC.new_empty((rows, outputs))
    for first in range(0, rows, COLUMNS[-1]):
        some = slice(first, first + COLUMNS[-1])
        part = epilogue if rows <= COLUMNS[-1] else epilogue.of_rows(some)
        _launch(x_NC[some], weight, part, plan, out_NE[some])
    return out_NE


def _launch(
    x_NC: Tensor, weight: Mxfp4Weight, epilogue: Epilogue, plan: Plan, out_NE: Tensor
) -> None:
    """One launch of at most 32 rows."""
    rows, outputs = out_NE.shape
    tiles, units = weight.words.shape[:2]
    once = units <= plan.warps * plan.depth
    early = plan.early if dependent_launches(x_NC.device) else ""
    unit_product[(plan.programs(outputs),)](
        x_NC,
        weight.words,
        weight.codes.view(torch.int32),
        _or(epilogue.bias_E, out_NE),
        _or(epilogue.residual_NE, out_NE),
        _or(epilogue.squares_TN, out_NE),
        out_NE,
        outputs,
        weight.inputs,
        rows,
        tiles // 2 if epilogue.gate else tiles,
        units,
        x_NC.stride(0),
        W=plan.warps,
        M=plan.tiles * (2 if epilogue.gate else 1),
        N=next(columns for columns in COLUMNS if columns >= rows),
        D=plan.depth,
        OLDER=_triton() <= LAST_OLDER,
        QUAD=_triton() <= LAST_QUAD,
        RAGGED=units % (plan.warps * (1 if once else plan.depth)) != 0,
        PADDED=weight.inputs % UNIT_INPUTS != 0,
        ONCE=once,
        SINGLE=rows == 1,
        BIAS=epilogue.bias_E is not None,
        RESIDUAL=epilogue.residual_NE is not None,
        SQUARES=epilogue.squares_TN is not None,
        GATE=epilogue.gate,
        PRECISION="ieee" if x_NC.dtype.itemsize == 4 else "tf32",
        num_warps=plan.warps,
        num_stages=1,
        EARLY=EARLY[early],
        **({"launch_pdl": True} if early else {}),
    )


@functools.cache
def _triton() -> tuple[int, int]:
    """Triton's version."""
    major, minor = triton.__version__.split(".")[:2]
    return int(major), int(minor)


def _or(given: Tensor | None, stand_in: Tensor) -> Tensor:
    """The tensor, or one that the kernel does not touch in its place."""
    return stand_in if given is None else given.contiguous()


def _check(x_NC: Tensor, weight: Mxfp4Weight, epilogue: Epilogue, programs: int) -> None:
    rows, inputs = x_NC.shape
    if inputs != weight.inputs or not 1 <= rows <= PACKED_ROWS:
        raise ValueError(
            f"{rows} rows of {inputs} and a matrix {tuple(weight.shape)}: the kernel takes 1 to "
            f"{PACKED_ROWS} rows of the matrix's inputs"
        )
    if epilogue.gate and weight.outputs % (2 * TILE_OUTPUTS):
        raise ValueError(
            f"gate and up rows of {weight.outputs} outputs are not whole tiles of {TILE_OUTPUTS}"
        )
    squares = epilogue.squares_TN
    if squares is not None and (squares.shape != (programs, rows) or rows > COLUMNS[-1]):
        raise ValueError(
            f"squares of shape {tuple(squares.shape)}, not ({programs}, {rows}) with at most "
            f"{COLUMNS[-1]} rows"
        )
