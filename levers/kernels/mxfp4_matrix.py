"""A matrix in MXFP4 as it stands in for a tensor: its bytes, its products, how it is made.

Shapes: N rows of activations, E outputs, C inputs (a multiple of 32); see :mod:`.mxfp4`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from levers.kernels.mxfp4 import element_codes, refusal
from levers.kernels.mxfp4_layout import (
    TILE_OUTPUTS,
    dequantise_torch,
    pack,
    pack_scales,
    units_of,
)

CHUNK_ELEMENTS = 1 << 22
"""Elements that are quantised at once: an fp64 temporary of a chunk is 34 MB."""

PACKED_ROWS = 64
"""Rows up to which the packed weights are multiplied directly on CUDA; more go to bf16 first."""


@dataclass(frozen=True, slots=True)
class Mxfp4Weight:
    """A matrix ``[E, C]`` in MXFP4, as it stands in for a tensor in a Linear.

    Attributes:
        words: int32 [T, U, 2, 32, 4], eight elements each (:mod:`.mxfp4_layout`).
        codes: uint8 [T, U, 16, 4], the E8M0 codes of their blocks.
        outputs: E.
        inputs: C.
    """

    words: Tensor
    codes: Tensor
    outputs: int
    inputs: int

    @property
    def shape(self) -> torch.Size:
        """Outputs and inputs, as of the tensor that was quantised."""
        return torch.Size((self.outputs, self.inputs))

    @property
    def device(self) -> torch.device:
        """Where the words live."""
        return self.words.device

    @property
    def nbytes(self) -> int:
        """Bytes that are kept: words and codes."""
        return self.words.nbytes + self.codes.nbytes

    def dequantise(self, dtype: torch.dtype) -> Tensor:
        """The quantised weights ``[E, C]``; exact in bf16 and wider where the scale is in range."""
        if self.device.type == "cuda":
            from levers.kernels.mxfp4_dequantise_triton import dequantise_triton

            return dequantise_triton(self, dtype)
        return dequantise_torch(self.words, self.codes, self.outputs, self.inputs, dtype)

    def packed(self, x_NC: Tensor) -> bool:
        """Whether the kernel multiplies these rows by the packed weights."""
        few = x_NC.device.type == "cuda" and x_NC.shape[0] <= PACKED_ROWS
        return few and x_NC.dtype is torch.bfloat16

    def linear(
        self, x_NC: Tensor, bias_E: Tensor | None = None, residual_NE: Tensor | None = None
    ) -> Tensor:
        """``x W^T (+ bias) (+ residual)`` in the dtype of ``x``; leading dimensions are kept.

        Up to 64 rows of bf16 on CUDA one kernel reads the packed weights and adds what is to be
        added (two launches above 32 rows); more rows, and every other device, multiply by the
        dequantised matrix.
        """
        rows_NC = x_NC.reshape(-1, x_NC.shape[-1])
        if self.packed(rows_NC):
            from levers.kernels.mxfp4_launch import Epilogue, product

            out_NE = product(rows_NC, self, Epilogue(bias_E, residual_NE))
        else:
            out_NE = functional.linear(rows_NC, self.dequantise(x_NC.dtype), bias_E)
            out_NE = out_NE if residual_NE is None else out_NE + residual_NE.reshape(out_NE.shape)
        return out_NE.view(*x_NC.shape[:-1], self.outputs)

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
        if self.packed(rows_NC) and self.outputs % (2 * TILE_OUTPUTS) == 0:
            from levers.kernels.mxfp4_launch import Epilogue, product

            out_NI = product(rows_NC, self, Epilogue(gate=True))
        else:
            gate_NI, up_NI = self.linear(rows_NC).chunk(2, dim=-1)
            out_NI = functional.silu(gate_NI) * up_NI
        return out_NI.view(*x_NC.shape[:-1], self.outputs // 2)


def quantise(weight_EC: Tensor) -> Mxfp4Weight:
    """Quantise a matrix, a chunk of rows at a time.

    Raises:
        ValueError: a matrix that :func:`refusal` names a reason for.
    """
    reason = refusal(weight_EC)
    if reason:
        raise ValueError(f"{reason}; leave the matrix as it is")
    outputs, inputs = weight_EC.shape
    tiles, units = units_of(outputs, inputs)
    device = weight_EC.device
    words = torch.empty((tiles, units, 2, 32, 4), dtype=torch.int32, device=device)
    codes = torch.empty((tiles, units, 16, 4), dtype=torch.uint8, device=device)
    for some in _chunks(tiles, inputs):
        rows = slice(some.start * TILE_OUTPUTS, min(some.stop * TILE_OUTPUTS, outputs))
        elements, scales = element_codes(weight_EC[rows])
        words[some], codes[some] = pack(elements), pack_scales(scales)
    return Mxfp4Weight(words, codes, outputs, inputs)


def _chunks(tiles: int, inputs: int) -> Iterator[slice]:
    """Runs of rows of units."""
    step = max(1, CHUNK_ELEMENTS // (inputs * TILE_OUTPUTS))
    for first in range(0, tiles, step):
        yield slice(first, min(first + step, tiles))
