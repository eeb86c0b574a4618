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
    count, inputs = x_NC.shape
    outputs = weight_EC.shape[0] // (2 if swiglu else 1)
    out_NE = x_NC.new_empty((count, outputs))
    delta = norm.delta_NC.contiguous() if norm is not None and norm.delta_NC is not None else x_NC
    stream = (
        x_NC,
        delta,
        norm.weight_C if norm is not None else x_NC,
        norm.sum_NC if norm is not None and norm.sum_NC is not None else x_NC,
        weight_EC,
        out_NE,
    )
    shared: dict[str, Any] = {
        "C": inputs,
        "ROWS": tile.rows,
        "TILE": tile.inputs,
        "STAGES": tile.stages,
        "NORM": norm is not None,
        "DELTA": norm is not None and norm.delta_NC is not None,
        "SWIGLU": swiglu,
        "PDL": tile.early,
        "num_warps": tile.warps,
    }
    if tile.early:
        shared["launch_pdl"] = True
    eps = 0.0 if norm is None else norm.eps
    tiles = triton.cdiv(outputs, tile.rows)
    if count == 1 and not tile.dot:
        _one_row[(tiles,)](*stream, eps, outputs, weight_EC.stride(0), **shared)
        return out_NE
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
        **shared,
    )
    return out_NE
