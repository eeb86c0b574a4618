"""Every frozen value that flows from a measured process to a verdict.

A status decides which fields a record may carry, and a validator enforces it: an illegal record
cannot be built. Effects are log ratios, > 0 is better.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field, model_validator

from experiments.values import FrozenMap, Scalar, Value

Arm = Literal["ref", "cand", "oracle", "oracle-ref"]
"""``oracle-ref`` is the reference run of the oracle pair: it never enters an effect."""


class Outcome(StrEnum):
    """The three verdicts, and the two honest answers where there is none."""

    DEFAULT_ON = "default-ON"
    GATED_OFF = "gated-OFF"
    TERMINAL = "terminal"
    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"


REASONS: dict[Outcome, tuple[str, ...]] = {
    Outcome.DEFAULT_ON: ("byte-exact", "failing-axis-win"),
    Outcome.GATED_OFF: (
        "parity-failed",
        "regression",
        "slower",
        "no-failing-axis-win",
        "out-of-memory",
        "candidate-crashed",
        "candidate-hung",
    ),
    Outcome.TERMINAL: ("not-worth-keeping",),
    Outcome.INCONCLUSIVE: (
        "guard-undecided",
        "win-undecided",
        "axis-state-undecided",
        "oracle-missing",
        "autocorrelated",
        "budget-spent",
        "too-little-recorded",
    ),
    Outcome.INVALID: (
        "unmet",
        "reference-failed",
        "reference-not-finite",
        "reference-not-deterministic",
        "oracle-mode",
        "lever-defective",
        "environment",
        "check-empty",
        "not-engaged",
        "not-restored",
        "pairs-lost",
        "uneven-loss",
        "throttled",
        "device-busy",
        "inputs-differ",
        "recompiled",
        "impossible-figure",
        "state-leaked",
        "code-changed",
        "ranks-disagree",
        "interrupted",
    ),
}
"""The closed list of reason codes (design: decisions)."""


# --- what a measured process reports ---------------------------------------------------------


class Sample(Value):
    """One process of one arm: one value per axis, with what it took to get it.

    Attributes:
        pair: index from 0 (for oracle runs: the index of the block's first pair).
        position: 0 ran first in its pair, 1 second.
        values: axis name to value, in the axis's unit.
        raw: the raw times and counts behind the values, small lists of numbers by name.
        start_s, warmup_s, measured_s: seconds until the workload was built, of warm-up, and of
            measured work; ``wall_s`` is the whole process as the parent saw it.
        inputs_digest: digest of the inputs (prompts, batches) that this process worked on.
        outputs_count: tokens or steps produced; equal in both arms of a pair.
        compilations: compilations or autotunings seen inside the timed part; must be 0.
        telemetry: device state seen while it ran (load, clock, throttling ...).
    """

    pair: int
    arm: Arm
    position: Literal[0, 1]
    values: FrozenMap[float]
    raw: FrozenMap[tuple[float, ...]] = Field(default_factory=dict)
    start_s: float
    warmup_s: float
    measured_s: float
    wall_s: float
    started_at: str
    inputs_digest: str
    outputs_count: int
    compilations: int = 0
    telemetry: FrozenMap[Scalar] = Field(default_factory=dict)


FailureKind = Literal[
    "out-of-memory",
    "crashed",
    "hung",
    "not-restored",
    "not-finite",
    "unmet",
    "lever-defective",
    "inputs-changed",
]
"""How a process failed; ``lever-defective`` and ``inputs-changed`` are no arm's fault, in whichever
process they showed."""


class ArmFailure(Value):
    """An arm that could not do its work, at which stage, and its last words."""

    arm: Arm
    kind: FailureKind
    stage: str
    message: str
    traceback: str = ""


class LostPair(Value):
    """A pair lost to a cause that is blind to the arm, and whose run the cause touched."""

    pair: int
    arm: Arm
    cause: str


# --- statistics ------------------------------------------------------------------------------


class Effect(Value):
    """The signed log ratio of one axis at one look, with its interval.

    ``kind``: ``t`` has ``stderr`` and ``dof``, from which the p of any shift follows;
    ``deterministic`` repeats exactly, its interval is the range of the data; ``sequence`` is an
    anytime-valid confidence sequence. ``nominal_p`` is the two-sided p of the look.
    """

    axis: str
    kind: Literal["t", "deterministic", "sequence"]
    units: int
    estimate: float
    lower: float
    upper: float
    sd: float
    nominal_p: float
    stderr: float = 0.0
    dof: int = 0
    autocorrelation: float | None = None
    unit_pairs: Literal[1, 2] = 1


StateName = Literal["failing", "passing", "undecided", "wanted", "ignored"]


class AxisState(Value):
    """Whether the reference misses a primary axis's target, and how that is known.

    ``ratio`` is reference over target as a factor, > 1 where the target is met; ``oracle`` names
    the outside implementation and ``oracle_mode`` says how it ran; ``missing`` says why none is.
    """

    axis: str
    state: StateName
    target: str = ""
    ratio: float | None = None
    lower: float | None = None
    upper: float | None = None
    runs: int = 0
    oracle: str = ""
    oracle_mode: str = ""
    missing: str = ""


class Look(Value):
    """One planned look: what was known from how many valid pairs."""

    index: int
    pairs: int
    effects: tuple[Effect, ...]
    states: tuple[AxisState, ...]
    lost: tuple[LostPair, ...] = ()
    last: bool = False


# --- decision --------------------------------------------------------------------------------


class Decision(Value):
    """What the rules say: outcome, reason code, the deciding axes and the text that explains it.

    ``smallest_visible`` is the smallest effect (log ratio) that this run could have seen;
    ``pairs_needed`` and ``minutes_needed`` are what would settle an inconclusive run.
    """

    outcome: Outcome
    reason: str
    axes: tuple[str, ...] = ()
    detail: str = ""
    undecided: tuple[str, ...] = ()
    smallest_visible: float | None = None
    pairs_needed: int | None = None
    minutes_needed: float | None = None
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _closed(self) -> Decision:
        if self.reason not in REASONS[self.outcome]:
            raise ValueError(f"{self.reason!r} is no reason for {self.outcome}")
        return self


class Environment(Value):
    """Where and with what a run was made: device, driver, versions, commit, boot, variables."""

    device_kind: str
    device_uuid: str = ""
    device_type: Literal["cpu", "cuda"]
    host: str
    boot_id: str
    versions: FrozenMap[str]
    commit: str = ""
    dirty: bool = False
    cpu_count: int
    memory_bytes: int
    device_memory_bytes: int = 0
    sm_count: int = 0
    variables: FrozenMap[str] = Field(default_factory=dict)
    removed_variables: FrozenMap[str] = Field(default_factory=dict)
    facts: FrozenMap[Scalar] = Field(default_factory=dict)

    @property
    def stack(self) -> str:
        """The versions that a verdict is bound to, as one line."""
        return " ".join(f"{name} {version}" for name, version in sorted(self.versions.items()))


class Timing(Value):
    """Where the wall-clock of a run went, in seconds."""

    total_s: float
    parity_s: float = 0.0
    arms_start_s: float = 0.0
    arms_warmup_s: float = 0.0
    arms_measured_s: float = 0.0
    forkserver_s: float = 0.0

    @property
    def overhead_share(self) -> float:
        """Share of all that is not the arms' own warm-up and measured work, nor the battery."""
        useful = self.arms_warmup_s + self.arms_measured_s
        ran = self.total_s - self.parity_s
        return max(0.0, (ran - useful) / ran) if ran > 0 else 0.0


RunStatus = Literal["running", "interrupted", "decided"]
