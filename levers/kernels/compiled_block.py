"""A transformer block whose parts between the attentions are compiled by ``torch.compile``.

One compiled function serves all blocks: what is compiled is a function of a block and its inputs,
so that the weights are inputs of the generated code and thirty blocks share it. The attentions stay
outside, whatever runs them, and so does any replaced query-key norm: no part needs a graph break.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor


class Parts(Protocol):
    """What a block offers: its work in parts, cut at the attentions.

    Shapes: N packed rows, M condition rows, C channels, H heads, D head dim, B samples.
    """

    def rows(self, mod_B6C: Tensor) -> tuple[Tensor, ...]:
        """Six rows ``[B, C]``: shift, scale and gate of the first part, then of the last."""

    def enter(self, x: Tensor, shift: Tensor, scale: Tensor, layout: Any) -> tuple[Tensor, Tensor]:
        """The stream to go on with; the self-attention's projection, ``[N, 3, H, D]``."""

    def turn_self(self, qkv: Tensor, phases: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Norm and rotary positions; the phases are complex. Queries, keys, values."""

    def turn_self_apart(self, q: Tensor, k: Tensor, phases: Tensor) -> tuple[Tensor, Tensor]:
        """The same as published, the phases being cosines and sines."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, queries: Any, keys: Any) -> Tensor:
        """``[N, C]`` from an attention."""

    def cross(
        self, x: Tensor, h: Tensor, gate: Tensor, layout: Any, cond: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The stream; the next attention's queries ``[N, H, D]``, keys and values packed."""

    def turn_cross(self, q: Tensor, kv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Norm of the cross-attention's queries and keys. Queries, keys, values."""

    def turn_cross_apart(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """The same as published."""

    def leave(
        self, x: Tensor, h: Tensor, shift: Tensor, scale: Tensor, gate: Tensor, layout: Any
    ) -> Tensor:
        """The stream after the cross-attention and the MLP."""

    @property
    def turns_as_published(self) -> bool:
        """Whether nothing has replaced the norm and rotation of queries and keys."""


def enter(block: Parts, *inputs: Any) -> Any:
    """The part before the self-attention's norms."""
    return block.enter(*inputs)


def turn_self(block: Parts, *inputs: Any) -> Any:
    """The self-attention's norms and rotation."""
    return block.turn_self_apart(*inputs)


def cross(block: Parts, *inputs: Any) -> Any:
    """The part between both attentions."""
    return block.cross(*inputs)


def turn_cross(block: Parts, *inputs: Any) -> Any:
    """The cross-attention's norms."""
    return block.turn_cross_apart(*inputs)


def leave(block: Parts, *inputs: Any) -> Any:
    """The part after the cross-attention."""
    return block.leave(*inputs)


PARTS: tuple[Callable[..., Any], ...] = (enter, turn_self, cross, turn_cross, leave)


class CompiledBlock:
    """Runs a block with its parts compiled; made once, and called for every block.

    Args:
        dynamic: whether the number of rows may change from call to call without a recompilation
            (packed batches); where it never does, the generated code knows it.
        mode: of ``torch.compile``.
        backend: of ``torch.compile``; another than Inductor only where no code is to be generated.
    """

    def __init__(self, *, dynamic: bool, mode: str = "default", backend: str = "inductor") -> None:
        self._options: dict[str, Any] = {"dynamic": dynamic, "mode": mode, "backend": backend}

    @functools.cached_property
    def _compiled(self) -> dict[Callable[..., Any], Callable[..., Any]]:
        """Made at the first call: loading the compiler takes seconds."""
        return {part: torch.compile(part, **self._options) for part in PARTS}

    def __call__(
        self,
        block: Parts,
        x: Tensor,
        mod: Tensor,
        layout: Any,
        phases: Tensor,
        cond: Tensor,
        cond_layout: Any,
    ) -> Tensor:
        """The block's output, ``[N, C]``."""
        shift1, scale1, gate1, shift2, scale2, gate2 = block.rows(mod)
        run = self._compiled
        x, qkv = run[enter](block, x, shift1, scale1, layout)
        h = block.attend(*self._turned_self(block, qkv, phases), layout, layout)
        x, q, kv = run[cross](block, x, h, gate1, layout, cond)
        q, k, v = self._turned_cross(block, q, kv)
        h = block.attend(q, k, v, layout, cond_layout)
        out: Tensor = run[leave](block, x, h, shift2, scale2, gate2, layout)
        return out

    def _turned_self(
        self, block: Parts, qkv: Tensor, phases: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Inductor writes no code for complex numbers: it gets the phases as pairs (a view).

        Values stay outside: as a view that passes through a graph, their gradient would be padded
        to that of the whole projection and added.
        """
        if not block.turns_as_published:
            return block.turn_self(qkv, phases)
        q, k, v = qkv.unbind(1)
        q, k = self._compiled[turn_self](block, q, k, torch.view_as_real(phases))
        return q, k, v

    def _turned_cross(self, block: Parts, q: Tensor, kv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if not block.turns_as_published:
            return block.turn_cross(q, kv)
        k, v = kv.unbind(1)
        q, k = self._compiled[turn_cross](block, q, k)
        return q, k, v
