"""What one rank leaves behind, and where its files lie; JSON, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from experiments.tasks import TaskResult
from experiments.values import FrozenMap, Value


class RankReport(Value):
    """How one rank ended.

    Attributes:
        rank: from 0.
        result: the whole task as this rank saw it.
        must_agree: what has to be equal on all ranks: environment, shapes of the inputs, weights.
        must_differ: what no two ranks may share: their shards of the global batch.
        ended: ``time.monotonic()`` when its work ended, which all processes of a boot share.
    """

    rank: int
    result: TaskResult
    must_agree: FrozenMap[str] = Field(default_factory=dict)
    must_differ: FrozenMap[str] = Field(default_factory=dict)
    ended: float


@dataclass(frozen=True, slots=True)
class RankFiles:
    """The files of one rank beside those of its task, so that they are removed with them."""

    report: Path
    stage: Path
    log: Path

    @classmethod
    def of(cls, stem: str, rank: int) -> RankFiles:
        """Those of a rank of the task at ``stem``."""
        beginning = f"{stem}.rank{rank}"
        return cls(*(Path(f"{beginning}.{kind}") for kind in ("report", "stage", "log")))


def rendezvous(stem: str) -> Path:
    """The file through which the ranks of a task find each other."""
    return Path(f"{stem}.rendezvous")
