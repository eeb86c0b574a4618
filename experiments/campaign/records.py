"""A drawn row: what each axis reached, what became of each lever, and what is left.

Three things stay apart for a lever, since histories show them disagreeing: its *default state*
(what ships), its *acceptance* (did every guarded axis hold in its own comparison), and its *credit*
(what the binding run says that it brings to the whole).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from experiments.campaign.spec import ClosedPath
from experiments.records import Outcome
from experiments.spec import TokenModel, without_token_models
from experiments.values import SCHEMA_VERSION, FrozenMap, Scalar, Value

RowState = Literal["met", "TERMINAL", "open"]
AxisStanding = Literal["met", "missed", "undecided", "unmeasured"]
LeverState = Literal["decided", "open", "unavailable"]
Accepted = Literal["held", "not held", "undecided", "not known"]
Credited = Literal["gain", "loss", "none", "mixed", "not measured", "not on"]
Confidence = Literal["high", "moderate", "low", "none"]
ResidualName = Literal["gemm", "attention", "glue", "host gap", "communication", "other"]

VERDICTS = (Outcome.DEFAULT_ON, Outcome.GATED_OFF, Outcome.TERMINAL)


class AxisReached(Value):
    """One axis of what ships against its target.

    ``ratio``, ``lower`` and ``upper`` are factors of the target, > 1 where it is reached; a figure
    that was published without an interval has the same three.
    """

    axis: str
    target: str
    state: AxisStanding
    ratio: float | None = None
    lower: float | None = None
    upper: float | None = None
    blocks: int = 0
    source: str = ""
    missing: str = ""


class LeverStanding(Value):
    """One lever of the row.

    Attributes:
        state: ``decided`` holds a valid verdict in this scope; ``unavailable`` cannot run in it.
        why: why it is open or unavailable, or what the verdict rests on.
        setting, outcome, reason, run_id, decided_at: of the verdict.
        default_state: what ships in this scope, with its flags.
        accepted, acceptance: whether every guarded axis held in its own comparison, in a word and
            with the axes.
        credited, credit: what the binding run says, in a word and per axis.
        contradicted: the binding run shows the whole slower with this lever than without it.
    """

    lever: str
    candidates: tuple[str, ...]
    state: LeverState
    why: str = ""
    setting: str = ""
    outcome: Outcome | None = None
    reason: str = ""
    run_id: str = ""
    decided_at: str = ""
    default_state: str = ""
    accepted: Accepted = "not known"
    acceptance: str = ""
    credited: Credited = "not measured"
    credit: str = ""
    contradicted: bool = False

    @model_validator(mode="after")
    def _legal(self) -> LeverStanding:
        if (self.state == "decided") != (self.outcome in VERDICTS):
            raise ValueError(f"{self.lever} is {self.state} with the verdict {self.outcome}")
        if self.state != "decided" and not self.why:
            raise ValueError(f"{self.lever} is {self.state} and does not say why")
        return self


class ResidualGroup(Value):
    """A named part of the time of what ships.

    ``reached`` is the share of its roofline that it reaches (1: nothing left), ``of`` which
    roofline that is; None where nobody can say the work behind it.
    """

    group: ResidualName
    ms: float
    share: float
    launches: float = 0.0
    reached: float | None = None
    of: str = ""
    note: str = ""


class Residual(Value):
    """Where the time of what ships goes, from a profile of the whole set.

    ``floors`` are how many times its bandwidth floor a step takes, by axis, where the workload says
    so; ``said`` is a published residual in words.
    """

    source: str = ""
    step_ms: float = 0.0
    unit: str = "step"
    groups: tuple[ResidualGroup, ...] = ()
    floors: FrozenMap[float] = Field(default_factory=dict)
    said: str = ""


class PathLeft(Value):
    """A path that the row did not exhaust, and why."""

    name: str
    state: Literal["declined", "unbuilt", "unavailable"]
    reason: str

    @classmethod
    def of(cls, path: ClosedPath) -> PathLeft:
        """A path of the file."""
        return cls(name=path.name, state=path.state, reason=path.reason)


class NextStep(Value):
    """What to measure next, the command, and what it takes of the device, in seconds."""

    what: str
    command: str
    estimate_s: float | None = None


class CampaignRow(Value):
    """A row as it was drawn at one moment.

    Attributes:
        row_id: sortable and unique.
        recorded: its figures were published by others, and nothing was measured here.
        why: what the state rests on.
        tokens_on: the models with which the tokens of what ships are compared, with their digests,
            in words.
        token_models: all models of the campaign, from which a row is drawn where its device is
            away.
        versions: the stack that the verdicts are bound to; empty where no device is here.
        catalog: the levers that the catalog had for this workload.
        unnamed: those among them that the file does not name.
        binding: the stack that measured what ships; ``unbound`` says why there is none.
        confidence: in a word; ``doubts`` are what lowers it.
        reopened: why a row that was met or TERMINAL is open again.
    """

    schema_version: int = SCHEMA_VERSION
    kind: Literal["campaign"] = "campaign"
    row_id: str
    name: str
    summary: str = ""
    file: str = ""
    file_digest: str = ""
    created_at: str
    state: RowState
    why: str
    recorded: bool = False
    workload: str
    parameters: FrozenMap[Scalar] = Field(default_factory=dict)
    device_kind: str = ""
    oracle: str = ""
    tokens_on: str = ""
    token_models: tuple[TokenModel, ...] = ()
    versions: FrozenMap[str] = Field(default_factory=dict)
    catalog: tuple[str, ...] = ()
    unnamed: tuple[str, ...] = ()
    axes: tuple[AxisReached, ...]
    levers: tuple[LeverStanding, ...]
    residual: Residual | None = None
    paths: tuple[PathLeft, ...] = ()
    binding: str = ""
    unbound: str = ""
    confidence: Confidence = "none"
    doubts: tuple[str, ...] = ()
    next: NextStep | None = None
    reopened: tuple[str, ...] = ()
    closed_by: str = ""
    closed_at: str = ""

    @model_serializer(mode="wrap")
    def _without_token_models(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Written as before there were any where there are none: digests stay what they were."""
        written = without_token_models(handler(self))
        if not written["token_models"]:
            written.pop("token_models")
        return written

    @model_validator(mode="after")
    def _legal(self) -> CampaignRow:
        states = {axis.state for axis in self.axes}
        if self.state == "met" and states != {"met"}:
            raise ValueError(f"a row with {', '.join(sorted(states))} axes is not met")
        if self.state == "TERMINAL":
            left = [one.lever for one in self.levers if one.state == "open"]
            if left or "missed" not in states or self.unnamed:
                raise ValueError(f"not TERMINAL: open {left or self.unnamed}, axes {states}")
        if self.state == "open" and self.closed_at:
            raise ValueError("an open row cannot be closed")
        return self

    @property
    def open_levers(self) -> tuple[LeverStanding, ...]:
        """The levers that still have no valid verdict here."""
        return tuple(one for one in self.levers if one.state == "open")
