"""What the measuring loop needs of the outside: processes, judge, device, listener."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from experiments.executor import Execution
from experiments.records import Effect
from experiments.run_record import RunRecord
from experiments.tasks import Task
from experiments.values import Scalar


class Runs(Protocol):
    """What the loop needs of :class:`experiments.executor.Executor`."""

    @property
    def server_s(self) -> float:
        """Seconds spent waiting for servers so far."""

    def run(self, task: Task, timeout_s: float | None = None) -> Execution:
        """Run one task in a fresh process."""

    def run_pair(self, first: Task, second: Task) -> tuple[Execution, Execution]:
        """Run two tasks in turns, the first one beginning."""

    def new_block(self) -> None:
        """Replace the server."""


class Judge(Protocol):
    """Decides from the record; see :mod:`experiments.pipeline`."""

    def __call__(self, record: RunRecord, look: int | None, *, spent: bool) -> bool:
        """Whether a decision stands.

        Args:
            record: all that is on disk.
            look: index of the planned look that is due, or None between looks.
            spent: no further pair will be measured.
        """


class Watch(Protocol):
    """Sees the device while nothing is measured."""

    def __call__(self, seconds: float) -> Mapping[str, Scalar]:
        """Telemetry of the next ``seconds``."""


class Progress(Protocol):
    """Hears of each sample; a part of :class:`experiments.requests.Listener`."""

    def on_sample(
        self, done: int, planned: int, effects: Sequence[Effect], seconds_left: float | None
    ) -> None:
        """A sample is on disk."""

    def on_warning(self, text: str) -> None:
        """Something that a reader of the verdict must know."""
