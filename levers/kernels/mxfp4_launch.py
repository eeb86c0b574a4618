"""Launches of the MXFP4 product: how a shape is cut into programs, and the call.

What the cut is reasoned from: an H200 has 132 SMs and reads 4.3 TB/s at a latency of about 0.7 us,
so that 3 MB, 23 KB an SM, must be on their way at any time. A program of one warp with 16 outputs
asks for 2.2 KB of words and codes a superblock of 256 inputs and holds 128 registers a thread, so
that an SM has 16 of them, and 70 KB on their way with two superblocks ahead. A narrow matrix gets
there only if its inputs are divided, too: the 2560 x 4096 of a 4 B model's attention output are 160
such tiles.

Decoding and multiplying takes 3.9 instructions a weight and thread (counted in the machine code for
sm_90), where reading at 4.3 TB/s leaves time for 3.7 on an SM's four schedulers: the two take about
the same time, and neither may wait for the other.

The cut is computed from the shape alone: nothing is tuned while something is timed.
``benchmarks/mxfp4_gemv.py`` sweeps others.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from levers.kernels.mxfp4 import PLANES, plane_width
from levers.kernels.mxfp4_matrix import PACKED_ROWS, Mxfp4Weight
from levers.kernels.mxfp4_triton import tile_product

TILE_ROWS = (8, 16, 32, PACKED_ROWS)
"""Padded rows; 8 is the narrower side of a tensor core's product (mma m16n8k16)."""

FEW_ROWS = 16
"""Rows up to which a program has 16 outputs and one warp; with more it has 64 and two, so that the
activations, which every program reads, are not read more often than the weights."""
RESIDENT = 132 * 16
"""Programs of one warp with 16 outputs that an H200 holds at once; of the others a quarter."""
MOST_STAGES = 3
"""With them a program of 8 rows has 12.5 KB of shared memory, 16 of them 200 of an SM's 227 KB."""
STAGED_ROWS = 32
"""With 64 rows the stages would take 83 KB a program and leave an SM two of them."""
SETUP_TURNS, SPLIT_TURNS = 0.35, 0.35
"""What a program costs beside its superblocks, in superblocks: its addresses, and where the inputs
are split the ticket and the sum (180 and 190 instructions beside 500 for a superblock)."""
PARTIAL_BYTES, SUPERBLOCK_BYTES = 8, 136
"""For one output: of a partial sum, written and read, in each row; of a superblock's weights."""
MOST_SPLITS = 16
"""Partial sums of a tile that its last program adds, at most."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a product is cut.

    Attributes:
        outputs: of one program, a power of two from 16.
        splits: programs among which the inputs of a tile are divided.
        warps: of one program; below 4, since 4 would take their operands from shared memory.
        stages: superblocks under way, that in use included; 1 leaves the overlap to the other
            programs of an SM.
        early: programmatic dependent launch.
    """

    outputs: int
    splits: int
    warps: int
    stages: int
    early: bool = False


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What becomes of the sums before they are rounded and written.

    Attributes:
        bias_E: added to every row.
        residual_NE: added element by element.
        squares_TN: receives, for each tile of outputs and each row, the sum of the squares of what
            was written (fp32), from which the next RMS norm has its scale without reading the row.
        gate: the matrix is gate rows and then up rows; the outputs are ``silu(gate) * up``.
    """

    bias_E: Tensor | None = None
    residual_NE: Tensor | None = None
    squares_TN: Tensor | None = None
    gate: bool = False


def plan_of(outputs: int, inputs: int, rows: int) -> Plan:
    """The fixed plan of a product: the number of splits with the shortest estimated time.

    Time is counted in turns of a superblock: waves of resident programs, times what one has to do.
    """
    superblocks = inputs // (PLANES * plane_width(inputs))
    tile, warps, resident = (16, 1, RESIDENT) if rows <= FEW_ROWS else (64, 2, RESIDENT // 4)
    tiles = -(-outputs // tile)

    split_turns = SPLIT_TURNS + rows * PARTIAL_BYTES / SUPERBLOCK_BYTES

    def turns(splits: int) -> float:
        waves = -(-tiles * splits // resident)
        fixed = SETUP_TURNS + (split_turns if splits > 1 else 0.0)
        return waves * (-(-superblocks // splits) + fixed)

    splits = min(range(1, min(superblocks, MOST_SPLITS) + 1), key=turns)
    stages = MOST_STAGES if rows <= STAGED_ROWS else 1
    return Plan(tile, splits, warps, min(stages, -(-superblocks // splits)))


def product(
    x_NC: Tensor, weight: Mxfp4Weight, epilogue: Epilogue, plan: Plan | None = None
) -> Tensor:
    """``x W^T`` of at most 64 rows with its epilogue, ``[N, E]`` (half as wide where gated).

    Args:
        x_NC: bf16, or fp32 under Triton's interpreter.
        weight: with planes of 16 or 32, which means inputs that are a multiple of 128.
        epilogue: what is done with the sums; what is rounded once is the final result.
        plan: another cut than the fixed one.

    Raises:
        ValueError: rows, planes or a place for squares that the kernel does not take.
    """
    x_NC = x_NC if x_NC.stride(-1) == 1 else x_NC.contiguous()
    rows, inputs = x_NC.shape
    outputs = weight.shape[0] // 2 if epilogue.gate else weight.shape[0]
    plan = plan or plan_of(outputs, inputs, rows)
    tiles = triton.cdiv(outputs, plan.outputs)
    _check(x_NC, weight, epilogue, tiles)
    out_NE = x_NC.new_empty((rows, outputs))
    sums = plan.splits * (2 if epilogue.gate else 1) if plan.splits > 1 else 0
    partial_SNE = x_NC.new_empty((sums, rows, outputs), dtype=torch.float32)
    tile_product[(tiles, plan.splits)](
        x_NC,
        weight.words_EW,
        weight.scales_EG.view(torch.int32),
        _or(epilogue.bias_E, out_NE),
        _or(epilogue.residual_NE, out_NE),
        _or(epilogue.squares_TN, out_NE),
        out_NE,
        partial_SNE if sums else out_NE,
        weight.tickets,
        outputs,
        rows,
        inputs // PLANES,
        x_NC.stride(0),
        plan.splits,
        P=plane_width(inputs),
        BLOCK_E=plan.outputs,
        ROWS=next(size for size in TILE_ROWS if size >= rows),
        SPLIT=plan.splits > 1,
        BIAS=epilogue.bias_E is not None,
        RESIDUAL=epilogue.residual_NE is not None,
        SQUARES=epilogue.squares_TN is not None,
        SWIGLU=epilogue.gate,
        PRECISION="ieee" if x_NC.dtype.itemsize == 4 else "tf32",
        num_warps=plan.warps,
        num_stages=plan.stages,
        EARLY=plan.early,
        **({"launch_pdl": True} if plan.early else {}),
    )
    return out_NE


def _or(given: Tensor | None, stand_in: Tensor) -> Tensor:
    """The tensor, or one that the kernel does not touch in its place."""
    return stand_in if given is None else given.contiguous()


def _check(x_NC: Tensor, weight: Mxfp4Weight, epilogue: Epilogue, tiles: int) -> None:
    rows, inputs = x_NC.shape
    if inputs != weight.shape[1] or not 1 <= rows <= PACKED_ROWS or inputs % (PLANES * 16):
        raise ValueError(
            f"{rows} rows of {inputs} and a matrix {tuple(weight.shape)}: the kernel takes 1 to "
            f"{PACKED_ROWS} rows of a multiple of {PLANES * 16} inputs"
        )
    squares = epilogue.squares_TN
    if squares is not None and squares.shape != (tiles, rows):
        raise ValueError(f"squares of shape {tuple(squares.shape)}, not ({tiles}, {rows})")
