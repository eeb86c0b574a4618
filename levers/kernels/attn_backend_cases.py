"""The cases of the op check of the attention backends: output and three gradients against fp64.

A case's inputs are ``q [N, H, D]``, keys and values packed in one ``[M, 2, H, D]`` as a projection
leaves them (so that both are strided views), and the output's gradient. Non-finite values are not
compared: a kernel may load a tile that reaches into the next sample, and zero times NaN is NaN.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from levers.base import OpCase
from levers.kernels.attn_backend import Layout, PackedAttention

Tensors = tuple[Tensor, ...]
Launch = Callable[[Tensor, Tensor, Tensor, Layout, Layout], Tensor]

CUDA_HEADS = (12, 128)
CPU_HEADS = (2, 32)
"""Heads and head dim: the 1.3 B model's, and the small one's."""

LARGE_LOGITS = 16.0
"""Factor on q: scores of a standard deviation of 16, where a softmax picks one key."""

LARGE_MEAN = 64.0
"""Added to the values: output and gradient cancel in the backward."""


@dataclass(frozen=True, slots=True)
class Samples:
    """A layout rebuilt from the lengths alone."""

    lengths: tuple[int, ...]
    cu_seqlens: Tensor

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device | str) -> Samples:
        """Samples one after the other."""
        offsets = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
        return cls(tuple(lengths), offsets.to(device))


def per_sample(q: Tensor, k: Tensor, v: Tensor, queries: Layout, keys: Layout) -> Tensor:
    """PyTorch's scaled dot-product attention, one sample after the other: ``[N, H, D]``."""
    rows = zip(
        q.split_with_sizes(queries.lengths),
        k.split_with_sizes(keys.lengths),
        v.split_with_sizes(keys.lengths),
        strict=True,
    )
    heads_first = [[one.transpose(0, 1)[None] for one in part] for part in rows]
    parts = [F.scaled_dot_product_attention(a, b, c) for a, b, c in heads_first]
    return torch.cat([part[0].transpose(0, 1) for part in parts])


def by_flash(q: Tensor, k: Tensor, v: Tensor, queries: Layout, keys: Layout) -> Tensor:
    """The original: flash attention where the device is CUDA."""
    if q.device.type != "cuda":
        return per_sample(q, k, v, queries, keys)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return per_sample(q, k, v, queries, keys)


def keys_backwards(q: Tensor, k: Tensor, v: Tensor, queries: Layout, keys: Layout) -> Tensor:
    """The original with each sample's keys in reverse order: another valid order of the sums."""
    turned_k, turned_v = (
        torch.cat([part.flip(0) for part in one.split_with_sizes(keys.lengths)]) for one in (k, v)
    )
    return by_flash(q, turned_k, turned_v, queries, keys)


class KeptProjection(torch.autograd.Function):
    """Keys and values as views of a packed projection that its maker keeps, as fused norms do."""

    @staticmethod
    def forward(ctx: Any, kv: Tensor) -> tuple[Tensor, Tensor]:
        """Two views ``[M, H, D]`` of ``[M, 2, H, D]``."""
        ctx.keeps_packed = True
        return kv[:, 0], kv[:, 1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:  # noqa: ARG004 - autograd's signature
        """One packed gradient."""
        return torch.stack(grads, 1)


@dataclass(frozen=True)
class AttentionCase:
    """One case; its methods are the callables of an :class:`levers.base.OpCase`.

    Attributes:
        queries, keys: rows of each sample.
        device: where the inputs lie.
        q_factor: on the queries.
        v_shift: added to the values.
        kept: whether the packed projection is kept by what made it; else values are copied.
    """

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    device: str
    q_factor: float = 1.0
    v_shift: float = 0.0
    kept: bool = True

    @property
    def heads(self) -> tuple[int, int]:
        """Number of heads and head dim."""
        return CUDA_HEADS if torch.device(self.device).type == "cuda" else CPU_HEADS

    def inputs(self, seed: int) -> Tensors:
        """``q, kv, grad`` in bf16, drawn on the CPU so that every device gets the same."""
        generator = torch.Generator().manual_seed(seed)
        q = self.q_factor * torch.randn(sum(self.queries), *self.heads, generator=generator)
        kv = torch.randn(sum(self.keys), 2, *self.heads, generator=generator)
        kv[:, 1] += self.v_shift
        grad = torch.randn(sum(self.queries), *self.heads, generator=generator)
        return tuple(one.to(torch.bfloat16).to(self.device) for one in (q, kv, grad))

    def outputs(self, inputs: Tensors) -> Tensors:
        """Room for the output and the gradients of q, k and v."""
        q, kv, _ = inputs
        rows = (q, q, kv[:, 0], kv[:, 1])
        return tuple(torch.empty(one.shape, dtype=one.dtype, device=one.device) for one in rows)

    def compute(self, launch: Launch, inputs: Tensors) -> Tensors:
        """Output and gradients, as autograd computes them."""
        q, kv = (one.detach().requires_grad_() for one in inputs[:2])
        k, v = KeptProjection.apply(kv) if self.kept else kv.unbind(1)  # type: ignore[no-untyped-call]
        queries, keys = (Samples.of(one, q.device) for one in (self.queries, self.keys))
        out = launch(q, k, v, queries, keys)
        dq, dkv = torch.autograd.grad(out, (q, kv), inputs[2])
        return (out.detach(), dq, *dkv.unbind(1))

    def write(self, launch: Launch, inputs: Tensors, outputs: Tensors) -> None:
        """The same into given tensors."""
        for room, found in zip(outputs, self.compute(launch, inputs), strict=True):
            room.copy_(found)

    def truth(self, inputs: Tensors) -> Tensors:
        """The same in fp64."""
        return self.compute(per_sample, tuple(one.double() for one in inputs))


def op_cases(setting: str, device: str) -> Sequence[OpCase]:
    """All cases of a backend for a device. cuDNN takes no single key: its shortest sample has 2."""
    one = 2 if setting == "cudnn" else 1
    ragged, shorter = (601, one, 257, 128, 1029), (64, 2056, one)
    make = partial(AttentionCase, device=device)
    cases = {
        "self, ragged": make(ragged, ragged),
        "cross, ragged": make((601, one, 257), shorter),
        "self, equal lengths": make((512,) * 3, (512,) * 3),
        "cross, equal lengths": make((512,) * 3, (77,) * 3),
        "cross, ragged on equal": make((601, one, 257), (300,) * 3),
        "self, ragged, copied": make(ragged, ragged, kept=False),
        "self, large scores": make(ragged, ragged, q_factor=LARGE_LOGITS),
        "self, values of large mean": make(ragged, ragged, v_shift=LARGE_MEAN),
    }
    return tuple(_op_case(name, setting, case) for name, case in cases.items())


def _op_case(name: str, setting: str, case: AttentionCase) -> OpCase:
    return OpCase(
        name=name,
        inputs=case.inputs,
        outputs=case.outputs,
        reference=partial(case.write, by_flash),
        candidate=partial(case.write, PackedAttention(setting)),
        truth=case.truth,
        elements=(2 * sum(case.queries) + 2 * sum(case.keys)) * case.heads[0] * case.heads[1],
        reorderings=(partial(case.write, keys_backwards),),
    )
