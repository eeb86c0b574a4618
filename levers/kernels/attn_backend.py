"""Attention of packed samples through a chosen kernel, differentiable.

Shapes: B samples, N packed query rows, M packed key rows, H heads, D head dim; L rows of a sample.

A backend computes either *packed* rows ``[N, H, D]`` cut by ``cu_seqlens`` or, where all samples
have as many queries and all have as many keys, a *dense* ``[B, L, H, D]``, which is the same memory
seen as four dimensions. Not causal, no mask, no dropout, scale ``1 / sqrt(D)``.

Each backend has an autograd Function with a telling name of its own, which is what a witness sees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from levers.errors import BadParameter, UnknownName
from levers.kernels.attn_backend_needs import NEEDS

State: TypeAlias = tuple[Tensor | None, ...]
"""What a forward leaves for its backward: log-sum-exp and, in some, a generator's state."""

Three: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Something for each of queries, keys and values."""

COMPILED = "CompiledFunctionBackward"
"""The node of a region that ``torch.compile`` made."""

NODES_BACK = 3
"""Nodes between a tensor and what made its buffer, at most: views of it."""

HALVES = (torch.bfloat16, torch.float16)
HEAD_DIM_STEP = 8
"""Rows are loaded 16 bytes at a time."""


class Layout(Protocol):
    """How packed rows are cut into samples."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Rows of each sample, on the host."""

    @property
    def cu_seqlens(self) -> Tensor:
        """B + 1 row offsets on the device, int32."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Queries and keys of one call, cut into samples.

    Attributes:
        queries, keys: rows of each sample.
        cu_q, cu_k: row offsets on the device, int32 [B + 1]; None for a dense call.
    """

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    cu_q: Tensor | None = None
    cu_k: Tensor | None = None

    @property
    def longest_q(self) -> int:
        """Queries of the longest sample."""
        return max(self.queries)

    @property
    def longest_k(self) -> int:
        """Keys of the longest sample."""
        return max(self.keys)

    @property
    def dense(self) -> bool:
        """Whether every sample has the same shape."""
        return self.cu_q is None

    def view(self, rows: Tensor, lengths: tuple[int, ...]) -> Tensor:
        """``[B, L, H, D]`` for a dense call, else the rows as they are; never a copy."""
        if not self.dense:
            return rows
        return rows.view(len(lengths), lengths[0], *rows.shape[1:])


class Kernel(Protocol):
    """One backend on tensors as :meth:`Cut.view` shapes them."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, cut: Cut) -> tuple[Tensor, State]:
        """The output, shaped as ``q``, and what the backward needs beside inputs and output."""

    def backward(
        self,
        grad: Tensor,
        inputs: Three,
        out: Tensor,
        state: State,
        cut: Cut,
    ) -> Three:
        """The gradients of q, k and v."""


def without_the_rest(x: Tensor) -> Tensor:
    """The tensor, or a copy of it where its buffer is larger and nothing else keeps that.

    A view that is kept for a backward keeps all of its buffer: values alone would keep the packed
    projection, three times as much. A fused norm keeps the projection for its own backward and says
    so (``keeps_packed``), and so do compiled regions, which have it from their own forward.
    """
    own = x.numel() * x.element_size()
    if x.untyped_storage().nbytes() <= own or _kept_anyway(x):
        return x
    return x.clone(memory_format=torch.contiguous_format)


def _kept_anyway(x: Tensor) -> bool:
    """Whether one of the last nodes that the tensor comes from keeps its buffer."""
    node = x.grad_fn
    for _ in range(NODES_BACK):
        if node is None:
            return False
        if getattr(node, "keeps_packed", False) or type(node).__name__ == COMPILED:
            return True
        node = node.next_functions[0][0] if node.next_functions else None
    return False


def run(ctx: Any, kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, cut: Cut) -> Tensor:
    """The forward of a backend's autograd Function: ``[N, H, D]``."""
    if any(ctx.needs_input_grad):
        q, k, v = map(without_the_rest, (q, k, v))
    shaped = cut.view(q, cut.queries), cut.view(k, cut.keys), cut.view(v, cut.keys)
    out, state = kernel.forward(*shaped, cut)
    out_NHD = out.flatten(0, 1) if cut.dense else out
    ctx.cut = cut
    ctx.save_for_backward(q, k, v, out_NHD, *state)
    return out_NHD


def run_backward(ctx: Any, kernel: Kernel, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    """Its backward: gradients of q, k and v, and none of the cut."""
    cut: Cut = ctx.cut
    q, k, v, out_NHD, *state = ctx.saved_tensors
    inputs = cut.view(q, cut.queries), cut.view(k, cut.keys), cut.view(v, cut.keys)
    grad, out = cut.view(grad, cut.queries), cut.view(out_NHD, cut.queries)
    found = kernel.backward(grad, inputs, out, tuple(state), cut)
    dq, dk, dv = (one.flatten(0, 1) if cut.dense else one for one in found)
    return dq, dk, dv, None


def function_of(backend: str) -> type[torch.autograd.Function]:
    """The autograd Function of a backend; imports the package that it needs.

    Raises:
        UnknownName: no such backend.
    """
    if backend == "fa2":
        from levers.kernels.attn_backend_fa2 import Fa2Attention

        return Fa2Attention
    if backend == "fa3":
        from levers.kernels.attn_backend_fa2 import Fa3Attention

        return Fa3Attention
    if backend == "fa4":
        from levers.kernels.attn_backend_fa4 import Fa4Attention

        return Fa4Attention
    if backend in ("cudnn", "torch-flash"):
        from levers.kernels.attn_backend_torch import CudnnAttention, TorchFlashAttention

        return CudnnAttention if backend == "cudnn" else TorchFlashAttention
    raise UnknownName("attention backend", backend, NEEDS)


def refuse(backend: str, q: Tensor) -> None:
    """Raise where the backend's kernels cannot run: there is no other path to fall back to.

    Raises:
        BadParameter: no CUDA device, a capability without kernels, a dtype or head dim without.
    """
    need, size = NEEDS[backend], q.shape[-1]
    if q.device.type != "cuda":
        raise BadParameter(f"attention by {backend} on a {q.device.type}", cure="use a CUDA device")
    capability = torch.cuda.get_device_capability(q.device)
    if not need.least <= capability < need.below:
        raise BadParameter(
            f"attention by {backend} has no kernels for compute capability {capability}",
            cure=f"it has them from {need.least} on and below {need.below}",
        )
    if q.dtype not in HALVES or size % HEAD_DIM_STEP:
        raise BadParameter(
            f"attention by {backend} of {q.dtype} with head dim {size}",
            cure=f"use bf16 or fp16 and a head dim that is a multiple of {HEAD_DIM_STEP}",
        )


def cut_of(queries: Layout, keys: Layout, cu_seqlens: Callable[[Any], Tensor]) -> Cut:
    """Dense where every sample has the same shape, and packed elsewhere."""
    if len(set(queries.lengths)) == 1 and len(set(keys.lengths)) == 1:
        return Cut(queries.lengths, keys.lengths)
    return Cut(queries.lengths, keys.lengths, cu_seqlens(queries), cu_seqlens(keys))


def kept_offsets(layout: Layout) -> Tensor:
    """The offsets that a layout carries."""
    return layout.cu_seqlens


class PackedAttention:
    """What a lever puts in the attention site: the site's signature, one backend.

    ``cu_seqlens`` gives a layout's row offsets on the device; a dense call does not ask for them.
    """

    def __init__(self, backend: str, cu_seqlens: Callable[[Any], Tensor] = kept_offsets) -> None:
        self.backend, self.cu_seqlens = backend, cu_seqlens
        self._taken: set[tuple[int, torch.dtype, int]] = set()
        self._function: Any = None

    def __call__(
        self, q_NHD: Tensor, k_MHD: Tensor, v_MHD: Tensor, queries: Layout, keys: Layout
    ) -> Tensor:
        """``[N, H, D]``, differentiable."""
        self._check(q_NHD)
        cut = cut_of(queries, keys, self.cu_seqlens)
        out_NHD: Tensor = self._function.apply(q_NHD, k_MHD, v_MHD, cut)
        return out_NHD

    def _check(self, q: Tensor) -> None:
        """Once for each device, dtype and head dim: asking the device takes microseconds a call."""
        kind = (q.get_device(), q.dtype, q.shape[-1])
        if kind not in self._taken:
            refuse(self.backend, q)
            self._function = function_of(self.backend)
            self._taken.add(kind)
