"""What the command line asks of the pipeline, what it hears meanwhile, and the rows it shows.

Plain frozen dataclasses: ``--help``, ``list`` and ``history`` need neither pydantic nor torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from experiments.parity_records import CheckResult
    from experiments.records import Effect, Look

NO_ORACLE = "none"
"""The value of ``--oracle`` that measures no oracle."""


@dataclass(frozen=True, slots=True)
class AbRequest:
    """One A/B as typed: nothing is resolved or checked yet.

    Attributes:
        cand: None takes the lever's usual setting (:func:`experiments.candidates.usual`).
        workload: None takes the first workload that the lever names.
        settings: workload parameters as text (``--set``, ``--model``, ``--size``).
        budget_s: wall-clock limit of the measuring part, in seconds.
        oracle: None takes the workload's default, :data:`NO_ORACLE` measures none.
        max_pairs: number of pairs of the last look, or None for the default plan.
        resume: id of an interrupted run to go on with.
        selected: how this setting was chosen among several; kept as warnings of the run.
        sequential: planned looks, or intervals that hold at any time and may be extended.
        profile: whether the candidate is profiled once after the verdict.
        ranks: processes of each arm, each with its own device and part of the global batch.
        parity_jobs: parity processes at once; None takes one on a CPU and several on a GPU.
        beside: levers that are on in both arms, ``name=setting``, with the default-ON ones.
        tokens_on: models with which tokens are compared in place of the timed one, ``model`` or
            ``model,lever=setting``.
        parity_only: stop before the first sample, unless witness or parity decide the run.
    """

    lever: str
    ref: str = "off"
    cand: str | None = None
    workload: str | None = None
    device: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    budget_s: float | None = None
    seed: int | None = None
    oracle: str | None = None
    max_pairs: int | None = None
    resume: str | None = None
    selected: tuple[str, ...] = ()
    sequential: Literal["group-sequential", "anytime"] = "group-sequential"
    profile: bool = False
    ranks: int = 1
    parity_jobs: int | None = None
    beside: tuple[str, ...] = ()
    tokens_on: tuple[str, ...] = ()
    parity_only: bool = False


@dataclass(frozen=True, slots=True)
class OverrideRequest:
    """A person's word over a verdict as typed; the scope is a run's, or the one that fits."""

    lever: str
    state: Literal["on", "off", "as-decided"]
    name: str
    reason: str
    workload: str | None = None
    setting: str | None = None
    run: str | None = None


class Listener(Protocol):
    """Hears what a run does; it changes nothing, except that ``on_estimate`` may refuse the run."""

    def on_stage(self, name: str, detail: str = "") -> None:
        """A stage begins (``preflight``, ``witness``, ``parity``, ``measure``, ``save`` ...)."""

    def on_estimate(self, seconds: float, pairs: int) -> None:
        """The device time that the run may take at most, before it starts.

        Raises:
            UsageError: the user does not want to spend it.
        """

    def on_check(self, check: CheckResult) -> None:
        """A parity check ended."""

    def on_sample(
        self, done: int, planned: int, effects: Sequence[Effect], seconds_left: float | None
    ) -> None:
        """A sample is on disk: samples done and planned, the running effects, the time left."""

    def on_progress(self, text: str) -> None:
        """Work of which there is no result yet goes on; called from another thread."""

    def on_look(self, look: Look) -> None:
        """A planned look was taken."""

    def on_warning(self, text: str) -> None:
        """Something that a reader of the verdict must know."""


@dataclass(frozen=True, slots=True)
class FalseVerdictRate:
    """How often this machine and workload give a verdict where nothing differs (A/A).

    ``rate``, ``lower`` and ``upper`` are shares of 1; ``measured_at`` is an ISO date.
    """

    rate: float
    lower: float
    upper: float
    measured_at: str
    stale: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """What the registry knows of a verdict beyond its own record; every text is shown beside it.

    ``confirmed`` names the second run that agreed; ``stale``, ``unbound``, ``invalidated`` and
    ``override`` say why, and are empty where they do not apply.
    """

    confirmed: str = ""
    stale: str = ""
    unbound: str = ""
    invalidated: str = ""
    override: str = ""
    calibration: FalseVerdictRate | None = None


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One stored run of a lever.

    ``effect``, ``lower`` and ``upper`` (log ratios) belong to ``axis``, the deciding one; they are
    None where no speed may be shown. ``beside`` are the other levers that were on in both arms;
    ``parity`` is the class of a run that passed parity and was not timed yet.
    """

    run_id: str
    created_at: str
    lever: str
    ref: str
    cand: str
    workload: str
    device_kind: str
    status: str
    outcome: str = ""
    reason: str = ""
    axis: str = ""
    effect: float | None = None
    lower: float | None = None
    upper: float | None = None
    pairs: int = 0
    beside: tuple[str, ...] = ()
    parity: str = ""
    standing: Standing = field(default_factory=Standing)


@dataclass(frozen=True, slots=True)
class LeverRow:
    """One lever of the catalog; ``broken`` carries why a plugin did not import.

    ``states`` are scope and default state; ``notes`` say what a reader must know beside them.
    """

    name: str
    summary: str = ""
    settings: str = ""
    workloads: tuple[str, ...] = ()
    env: str = ""
    states: tuple[tuple[str, str], ...] = ()
    broken: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImportRow:
    """One bundle that was read: whether it was new to the registry, or a later state of its run."""

    path: str
    run_id: str
    new: bool
    updated: bool = False


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What ``sync`` did with the runs that MLflow lacked."""

    mirrored: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    reason: str = ""


class SilentListener:
    """Hears everything and says nothing."""

    def on_stage(self, name: str, detail: str = "") -> None:
        """Say nothing."""

    def on_estimate(self, seconds: float, pairs: int) -> None:
        """Say nothing."""

    def on_check(self, check: CheckResult) -> None:
        """Say nothing."""

    def on_sample(
        self, done: int, planned: int, effects: Sequence[Effect], seconds_left: float | None
    ) -> None:
        """Say nothing."""

    def on_progress(self, text: str) -> None:
        """Say nothing."""

    def on_look(self, look: Look) -> None:
        """Say nothing."""

    def on_warning(self, text: str) -> None:
        """Say nothing."""
