"""What a training session asks of the other ranks of its arm; alone, there are none.

A session whose workload can run on several ranks has an attribute ``team``, :data:`ALONE` until
:mod:`experiments.ranks` gives it another one before its step is built. No torch is needed here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

Figures = Mapping[str, tuple[float, ...]]
"""Small lists of numbers by name, as they go into a sample's ``raw``."""


class Team(Protocol):
    """The ranks of one arm as one of them sees them; all call the same methods in the same order.

    Attributes:
        rank: this rank, from 0.
        size: number of ranks.
    """

    rank: int
    size: int

    def shard(self, seed: int) -> int:
        """The seed of this rank's part of the global batch."""

    def wrap(self, model: Any) -> Callable[..., Any]:
        """What the step calls for the model: gradients are averaged over the ranks."""

    def optimizer(self, kind: Any, parameters: Iterable[Any], **options: Any) -> Any:
        """The update of that kind; its state is divided among the ranks."""

    def backward(self, loss: Any) -> None:
        """Add the gradients of a micro-step; its last one averages them over the ranks."""

    def local(self, forward: Callable[..., Any]) -> contextlib.AbstractContextManager[Any]:
        """Where gradients are kept on this rank: all micro-steps of a step but its last."""

    def start(self) -> None:
        """Begin a timed stretch together; waits for the slowest rank."""

    def slowest(self, seconds: Sequence[float]) -> tuple[float, ...]:
        """For each step the time of the rank that took longest."""

    def after(self, step: Any) -> Figures:
        """Untimed, at the end of a sample: what communication costs, and whether all agree."""


class Alone:
    """One rank: nothing is wrapped, divided or waited for."""

    rank = 0
    size = 1

    def shard(self, seed: int) -> int:
        """The whole batch is this rank's."""
        return seed

    def wrap(self, model: Any) -> Callable[..., Any]:
        """The model itself."""
        forward: Callable[..., Any] = model
        return forward

    def optimizer(self, kind: Any, parameters: Iterable[Any], **options: Any) -> Any:
        """The update with all of its state."""
        return kind(parameters, **options)

    def backward(self, loss: Any) -> None:
        """Nothing is averaged."""
        loss.backward()

    def local(self, forward: Callable[..., Any]) -> contextlib.AbstractContextManager[Any]:
        """Gradients stay here anyway."""
        del forward
        return contextlib.nullcontext()

    def start(self) -> None:
        """Nobody to wait for."""

    def slowest(self, seconds: Sequence[float]) -> tuple[float, ...]:
        """The own times."""
        return tuple(seconds)

    def after(self, step: Any) -> Figures:
        """Nothing is communicated."""
        del step
        return {}


ALONE = Alone()
