"""The op cases of the fused block: each of its products, and a whole block, forward alone.

A product's inputs are the stream, the addend and the norm's weight (where it is normed), and the
weights. A block's are the stream, the addend, cosines and sines, and the weights of the layer; its
attention is a stand-in of the same shapes in which queries, keys and values all matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from levers.base import OpCase
from levers.kernels import add_norm_cases, decode_qk_rope_cases
from levers.kernels.fused_block import FusedBlock
from levers.kernels.gemv import Norm, fused_linear
from levers.kernels.gemv_values import Fill, ForwardCase, Tensors, word

EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Size:
    """Dimensions of a model's block."""

    hidden: int
    inner: int
    q_heads: int
    kv_heads: int
    head_dim: int
    qk_norm: bool = True

    @property
    def heads(self) -> tuple[int, int]:
        """Query heads and KV heads."""
        return self.q_heads, self.kv_heads

    @property
    def packed(self) -> int:
        """Outputs of the packed projection."""
        return (self.q_heads + 2 * self.kv_heads) * self.head_dim


SIZES = {
    "shipped": Size(128, 512, 16, 8, 16),
    "Llama, small": Size(256, 704, 8, 2, 32, qk_norm=False),
    "Qwen3-0.6B": Size(1024, 3072, 16, 8, 128),
    "Qwen3-4B": Size(2560, 9728, 32, 8, 128),
}
ROWS = (1, 2, 3, 7, 16, 31, 32)
LARGE_ROWS = (1, 7, 32)
"""At the size of 4 B, whose weights are drawn on the host."""


@dataclass(frozen=True)
class Product:
    """One product: whether it is normed and gated; its methods are a case's two calls."""

    normed: bool
    gated: bool

    def original(self, tensors: Tensors) -> Tensors:
        """Separate operations, each rounded."""
        if self.normed:
            *stream, weight = tensors
            sum_NC, x_NC = add_norm_cases.original(tuple(stream))
        else:
            x_NC, weight = tensors
        y = functional.linear(x_NC, weight)
        if self.gated:
            gate, up = y.chunk(2, dim=-1)
            y = functional.silu(gate) * up
        return (sum_NC, y) if self.normed else (y,)

    def fused(self, tensors: Tensors) -> Tensors:
        """Ours."""
        if not self.normed:
            return (fused_linear(tensors[0], tensors[1], swiglu=self.gated),)
        x_NC, delta_NC, norm_C, weight = tensors
        sum_NC = torch.empty_like(x_NC)
        norm = Norm(norm_C, EPS, delta_NC, sum_NC)
        y = fused_linear(x_NC, weight, norm, swiglu=self.gated)
        return sum_NC, y

    def case(
        self, shape: tuple[int, int, int], dtype: torch.dtype, device: str, fill: Fill | None = None
    ) -> ForwardCase:
        """A case of N rows, E outputs and C inputs."""
        count, outputs, inputs = shape
        rows = (count, inputs)
        weight = (outputs * (2 if self.gated else 1), inputs)
        return ForwardCase(
            shapes=(rows, rows, (inputs,), weight) if self.normed else (rows, weight),
            scales=(*((1.0, 0.5, None) if self.normed else (1.0,)), inputs**-0.5),
            original=self.original,
            fused=self.fused,
            dtype=dtype,
            device=device,
            fill=fill,
        )


NORMED, GATED, PLAIN = Product(True, False), Product(True, True), Product(False, False)


@dataclass(frozen=True)
class _Layer:
    """A block's weights under the names that the decoder gives them."""

    input_norm_C: Tensor
    qkv_EC: Tensor
    o_CE: Tensor
    post_norm_C: Tensor
    gate_up_JC: Tensor
    down_CI: Tensor
    qk_norms: tuple[Tensor, Tensor] | None


@dataclass(frozen=True)
class _Config:
    head_dim: int
    rms_norm_eps: float = EPS


@dataclass(frozen=True)
class _Parts:
    """A block as the decoder hands it over."""

    config: _Config
    weights: _Layer
    heads: tuple[int, int]
    index: int = 0


def attend(layer: int, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
    """Values weighted by the sigmoid of query times key: the shapes of attention, no cache."""
    del layer
    group = q_NHD.shape[1] // k_NKD.shape[1]
    k_NHD, v_NHD = (x.repeat_interleave(group, dim=1) for x in (k_NKD, v_NKD))
    scores = (q_NHD * k_NHD).sum(-1, keepdim=True) / math.sqrt(q_NHD.shape[-1])
    return torch.sigmoid(scores) * v_NHD


@dataclass(frozen=True)
class WholeBlock:
    """A block of one size; its methods are a case's two calls."""

    size: Size
    early: bool = False

    def _parts(self, tensors: Tensors) -> _Parts:
        input_norm, qkv, o, post_norm, gate_up, down, *norms = tensors[4:]
        qk_norms = (norms[0], norms[1]) if norms else None
        layer = _Layer(input_norm, qkv, o, post_norm, gate_up, down, qk_norms)
        return _Parts(_Config(self.size.head_dim), layer, self.size.heads)

    def original(self, tensors: Tensors) -> Tensors:
        """From separate operations."""
        parts = self._parts(tensors)
        return separate(parts, tensors[0], tensors[1], (tensors[2], tensors[3]))

    def fused(self, tensors: Tensors) -> Tensors:
        """Ours."""
        x_NC, delta_NC, cos_N1D, sin_N1D = tensors[:4]
        run = FusedBlock(separate, early=self.early)
        return run(self._parts(tensors), x_NC, delta_NC, (cos_N1D, sin_N1D), attend)

    def case(self, count: int, dtype: torch.dtype, device: str) -> ForwardCase:
        """A case of N rows."""
        size, d = self.size, self.size.head_dim
        c, i, e = size.hidden, size.inner, size.q_heads * d
        rows, turns = (count, c), (count, 1, d)
        norms = ((d,), (d,)) if size.qk_norm else ()
        matrices = ((c,), (size.packed, c), (c, e), (c,), (2 * i, c), (c, i))
        scales = (None, c**-0.5, e**-0.5, None, c**-0.5, i**-0.5)
        return ForwardCase(
            shapes=(rows, rows, turns, turns, *matrices, *norms),
            scales=(1.0, 0.5, 1.0, 1.0, *scales, *(None for _ in norms)),
            original=self.original,
            fused=self.fused,
            dtype=dtype,
            device=device,
            fill=_turns,
        )


def separate(
    parts: _Parts, x: Tensor, delta: Tensor, rope: tuple[Tensor, Tensor], _: object = None
) -> tuple[Tensor, Tensor]:
    """One block as published, each operation rounded by itself."""
    layer = parts.weights
    x, normed = add_norm_cases.original((x, delta, layer.input_norm_C))
    packed = functional.linear(normed, layer.qkv_EC)
    packed = packed.view(len(x), -1, parts.config.head_dim)
    heads = decode_qk_rope_cases.original(parts.heads, (packed, *rope, *(layer.qk_norms or ())))
    attended = attend(0, *heads).reshape(len(x), -1)
    projected = functional.linear(attended, layer.o_CE)
    x, normed = add_norm_cases.original((x, projected, layer.post_norm_C))
    gate, up = functional.linear(normed, layer.gate_up_JC).chunk(2, dim=-1)
    return x, functional.linear(functional.silu(gate) * up, layer.down_CI)


def _turns(tensors: Tensors) -> None:
    """Cosines and sines of random angles."""
    angles = tensors[2].clone()
    tensors[2].copy_(angles.cos())
    tensors[3].copy_(angles.sin())


def _products(size: Size) -> dict[str, tuple[Product, int, int]]:
    """The four products of a block: kind, outputs, inputs."""
    return {
        "qkv": (NORMED, size.packed, size.hidden),
        "o": (PLAIN, size.hidden, size.q_heads * size.head_dim),
        "gate_up": (GATED, size.inner, size.hidden),
        "down": (PLAIN, size.hidden, size.inner),
    }


def op_cases(device: str, *, early: bool = False) -> Sequence[OpCase]:
    """All cases for a device; ``early`` launches are in the whole blocks."""
    on_cuda = torch.device(device).type == "cuda"
    dtype = torch.bfloat16 if on_cuda else torch.float32
    cases = []
    for name in SIZES if on_cuda else ("shipped", "Llama, small"):
        for count in LARGE_ROWS if name == "Qwen3-4B" else ROWS:
            for label, (product, outputs, inputs) in _products(SIZES[name]).items():
                case = product.case((count, outputs, inputs), dtype, device)
                cases.append(case.named(f"{label} of {name}, {count} rows, {word(dtype)}"))
            block = WholeBlock(SIZES[name], early).case(count, dtype, device)
            cases.append(block.named(f"block of {name}, {count} rows, {word(dtype)}"))
    return (*cases, *_value_cases(dtype, device))


def _value_cases(dtype: torch.dtype, device: str) -> list[OpCase]:
    """Adversarial values in normed and gated products, of one row and of a few."""
    cases = []
    for label, fill in add_norm_cases.FILLS.items():
        for count in (1, 3):
            for product, kind in ((NORMED, "normed"), (GATED, "gated")):
                case = product.case((count, 320, 256), dtype, device, fill)
                cases.append(case.named(f"{label}, {kind}, {count} rows, {word(dtype)}"))
    for product, kind in ((NORMED, "normed"), (GATED, "gated")):
        case = product.case((4, 320, 256), dtype, device, add_norm_cases.nonfinite)
        cases.append(case.named(f"NaN and Inf, {kind}, {word(dtype)}", masked=True))
    return cases
