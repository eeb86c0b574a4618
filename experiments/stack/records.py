"""The record of a stack: its rows, what each process measured, and what follows from it.

It is a measurement with a table and no verdict. Every figure in it is drawn from the samples of one
schedule, so that a stored record can be analysed again.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from experiments.parity_records import ParityReport
from experiments.profiling_records import Profile
from experiments.records import Arm, ArmFailure, Effect, Environment, LostPair, Sample
from experiments.spec import LeverSetting, TokenModel, without_token_models
from experiments.values import SCHEMA_VERSION, FrozenMap, Scalar, Value
from levers.policy import Axis, ParityClass

Part = Literal["waterfall", "leave-one-out", "pair", "oracle"]
"""Which table asked for a row; a set of levers that several ask for is measured once."""


class Row(Value):
    """One set of levers that is measured; ``parts`` are the tables that need it.

    The row of an ``oracle`` has no lever: it is an outside implementation of the same work.
    """

    index: int
    levers: tuple[LeverSetting, ...]
    parts: tuple[Part, ...]
    oracle: str = ""

    @property
    def name(self) -> str:
        """The levers of the row in words."""
        if self.oracle:
            return f"oracle {self.oracle}"
        return " + ".join(map(str, self.levers)) or "no lever"

    @property
    def arm(self) -> Arm:
        """The arm of its processes; the row without levers is the reference."""
        if self.oracle:
            return "oracle"
        return "cand" if self.levers else "ref"


class Overlap(Value):
    """Two levers whose effects cannot be independent, why, and the rows that tell.

    ``rows`` are the indices of: neither, the first alone, the second alone, both.
    """

    levers: tuple[str, str]
    why: str
    rows: tuple[int, int, int, int]


class Published(Value):
    """A figure of somebody else's, at one row of a waterfall: never compared as if paired.

    ``after`` is the lever that was added last there (empty: the first row); ``at`` are the
    parameters at which it was measured, as text.
    """

    after: str
    axis: str
    value: float
    at: FrozenMap[str]


class StackSpec(Value):
    """What a stack measures, fixed before the first sample.

    Attributes:
        levers: the levers in the order in which they are added.
        rows: all sets of levers that are measured; row k of the waterfall is ``rows[k]``, and an
            oracle's row is the last one.
        left_out: per lever, the index of the row without it; empty where that was not asked for.
        blocks: planned blocks; each holds every row once.
        interleaved: each row runs in turns with a process without levers, and its values are taken
            as ratios to that one's; the row without levers then needs no process of its own.
        axis: the axis on which gains are judged.
        claims, demands: the weakest parity class that a lever of the stack claims, and demands.
        levers_digest: digest of the source files of all levers.
        stepwise: whether the waterfall adds the levers one by one, or the whole alone is measured.
        oracle_mode: how the oracle must run to be in its users' mode; empty where unknown.
        tokens_on: the models with which the tokens of the whole are compared.
    """

    workload: str
    parameters: FrozenMap[Scalar]
    device: str
    seed: int
    levers: tuple[LeverSetting, ...]
    rows: tuple[Row, ...]
    left_out: tuple[int, ...] = ()
    overlaps: tuple[Overlap, ...] = ()
    blocks: int
    budget_s: float | None = None
    interleaved: bool = False
    axis: str
    claims: ParityClass
    demands: ParityClass
    levers_digest: str
    published: tuple[Published, ...] = ()
    stepwise: bool = True
    oracle_mode: str = ""
    tokens_on: tuple[TokenModel, ...] = ()

    @model_serializer(mode="wrap")
    def _without_token_models(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Written as before there were any where there are none: digests stay what they were."""
        return without_token_models(handler(self))

    @property
    def whole(self) -> int:
        """The index of the row with all levers."""
        return len(self.levers) if self.stepwise else min(1, len(self.levers))

    @property
    def oracle(self) -> Row | None:
        """The row of the oracle, if one is measured."""
        return next((row for row in self.rows if row.oracle), None)


class RowEvidence(Value):
    """What the processes of one row left.

    ``plans``: per ``lever: axis`` what ran at the lever's sites, read after the timed part.
    """

    row: Row
    parity: ParityReport | None = None
    plans: FrozenMap[str] = Field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    lost: tuple[LostPair, ...] = ()
    failures: tuple[ArmFailure, ...] = ()

    def of(self, arm: Arm) -> dict[int, Sample]:
        """The samples of one arm by the number of their block."""
        return {sample.pair: sample for sample in self.samples if sample.arm == arm}

    @property
    def failed(self) -> str:
        """Why the row has no speed; empty where it was measured."""
        if not self.failures:
            return ""
        last = self.failures[-1]
        return f"{last.kind} at {last.stage}: {last.message}"


class Contrast(Value):
    """A combination of rows: what one lever brings, or how two meet.

    Attributes:
        name: the lever, or both.
        rows: indices of the rows; ``signs`` are their weights (+1 or -1) in the log ratio.
        effects: of every axis, > 0 is better; none where a row has no speed.
        missing: why there is no effect.
        p: two-sided p of "no effect" on the judged axis, adjusted over the table (Holm, 1979).
        inert: the rows ran the same plan at the lever's sites, so that nothing is its doing.
    """

    name: str
    rows: tuple[int, ...]
    signs: tuple[int, ...]
    effects: tuple[Effect, ...] = ()
    missing: str = ""
    p: float | None = None
    inert: bool = False

    def effect(self, axis: str) -> Effect | None:
        """The effect on an axis, if it was measured."""
        return next((one for one in self.effects if one.axis == axis), None)


class Analysis(Value):
    """What follows from the samples.

    Attributes:
        blocks: the blocks that count: whole ones whose mirrored block is whole too.
        values: per row, in their order, the medians of its axes over those blocks.
        gains: what each lever adds, in the order of the waterfall.
        total: the whole stack against no lever, measured in the same blocks.
        log_sum: sum of the log gains on the judged axis; equal to the total's log, since nothing is
            counted twice. None where a gain is missing.
        oracle: the row without levers, then the whole stack, each against the oracle.
    """

    blocks: tuple[int, ...] = ()
    values: tuple[FrozenMap[float], ...] = ()
    gains: tuple[Contrast, ...] = ()
    total: Contrast | None = None
    log_sum: float | None = None
    left_out: tuple[Contrast, ...] = ()
    interactions: tuple[Contrast, ...] = ()
    oracle: tuple[Contrast, ...] = ()


class StackRecord(Value):
    """A stack with all its evidence.

    ``status``: ``refused`` stacks failed parity or could not be measured, and show no speed;
    ``faults`` then say why (a code and a text).
    """

    schema_version: int = SCHEMA_VERSION
    kind: Literal["stack"] = "stack"
    stack_id: str
    status: Literal["running", "interrupted", "measured", "refused"]
    created_at: str
    spec: StackSpec
    axes: tuple[Axis, ...]
    environment: Environment
    evidence: tuple[RowEvidence, ...] = ()
    analysis: Analysis = Field(default_factory=Analysis)
    stopped: str = ""
    faults: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()
    total_s: float = 0.0
    profile: Profile | None = None

    @model_validator(mode="after")
    def _legal(self) -> StackRecord:
        if self.status == "refused" and not self.faults:
            raise ValueError("a refused stack says why")
        if self.status != "measured" and (self.analysis.gains or self.analysis.total):
            raise ValueError(f"a stack that is {self.status} shows no gain")
        for one in self.evidence:
            broken = one.parity is not None and one.parity.parity_class is ParityClass.BROKEN
            if broken and one.samples:
                raise ValueError(f"{one.row.name}: parity is broken, so no speed may be recorded")
        return self

    @property
    def of_whole(self) -> tuple[Sample, ...]:
        """The timed processes of what is on as a whole; of no lever: the reference's."""
        arm = self.spec.rows[self.spec.whole].arm
        rows = self.evidence if arm == "ref" else self.evidence[self.spec.whole :][:1]
        return tuple(one for row in rows for one in row.samples if one.arm == arm)

    def axis(self, name: str) -> Axis:
        """The axis of that name.

        Raises:
            KeyError: this stack has no such axis.
        """
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise KeyError(name)
