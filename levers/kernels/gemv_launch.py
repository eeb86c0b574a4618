"""Launches of the decode step's matrix products (see :mod:`.gemv` for what they compute)."""

from __future__ import annotations

from typing import Any

import triton
from torch import Tensor

from levers.kernels.gemv import Norm, Scratch
from levers.kernels.gemv_tilings import Tiling
from levers.kernels.gemv_triton import _few_rows, _one_row


def launch(
    x_NC: Tensor,
    weight_EC: Tensor,
    norm: Norm | None,
    swiglu: bool,
    scratch: Scratch,
    tile: Tiling,
) -> Tensor:
    """One launch on rows in one piece.

    Raises:
        ValueError: weights whose rows are not contiguous, or a tiling that splits the inputs of a
            normed or gated product, whose scale needs all of them.
    """
    if weight_EC.stride(1) != 1:
        raise ValueError(f"weights of strides {weight_EC.stride()}: rows must be contiguous")
    if tile.splits > 1 and (norm is not None or swiglu):
        raise ValueError("a product that is normed or gated cannot be split over its inputs")
    x_NC = x_NC.contiguous()
    outputs = weight_EC.shape[0] // (2 if swiglu else 1)
    out_NE = x_NC.new_empty((len(x_NC), outputs))
    stream = (*_stream(x_NC, norm), weight_EC, out_NE)
    eps = 0.0 if norm is None else norm.eps
    constants = _constants(x_NC, norm, swiglu, tile)
    if len(x_NC) == 1 and not tile.dot:
        grid = (triton.cdiv(outputs, tile.rows),)
        _one_row[grid](*stream, eps, outputs, weight_EC.stride(0), **constants)
    else:
        _launch_few(stream, eps, scratch, tile, constants)
    return out_NE


def _stream(x_NC: Tensor, norm: Norm | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Stream, addend, norm weight and sum; what there is not is never read or written."""
    if norm is None:
        return x_NC, x_NC, x_NC, x_NC
    delta_NC = x_NC if norm.delta_NC is None else norm.delta_NC.contiguous()
    return x_NC, delta_NC, norm.weight_C, x_NC if norm.sum_NC is None else norm.sum_NC


def _constants(x_NC: Tensor, norm: Norm | None, swiglu: bool, tile: Tiling) -> dict[str, Any]:
    """What both kernels are compiled for."""
    early = {"launch_pdl": True} if tile.early else {}
    return {
        "C": x_NC.shape[1],
        "ROWS": tile.rows,
        "TILE": tile.inputs,
        "STAGES": tile.stages,
        "NORM": norm is not None,
        "DELTA": norm is not None and norm.delta_NC is not None,
        "SWIGLU": swiglu,
        "PDL": tile.early,
        "num_warps": tile.warps,
        **early,
    }


def _launch_few(
    stream: tuple[Tensor, ...],
    eps: float,
    scratch: Scratch,
    tile: Tiling,
    constants: dict[str, Any],
) -> None:
    """The kernel of several rows, its inputs split where the tiling says so."""
    x_NC, weight_EC, out_NE = stream[0], stream[-2], stream[-1]
    count, inputs = x_NC.shape
    outputs = out_NE.shape[1]
    tiles = triton.cdiv(outputs, tile.rows)
    partial, ticket = out_NE, out_NE
    if tile.splits > 1:
        partial, ticket = scratch.room(x_NC.device, tile.splits * out_NE.numel(), tiles)
    steps = triton.cdiv(triton.cdiv(inputs, tile.inputs), tile.splits)
    _few_rows[(tiles, tile.splits)](
        *stream,
        partial,
        ticket,
        eps,
        count,
        outputs,
        weight_EC.stride(0),
        N=16 if count <= 16 else 32,
        SPLITS=tile.splits,
        PER_SPLIT=steps * tile.inputs,
        PRECISION="ieee" if x_NC.dtype.itemsize == 4 else "tf32",
        **constants,
    )
