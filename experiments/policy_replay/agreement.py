"""A corpus of recorded decisions, decided again under a named policy, and how far the two agree.

The rules are those of a live run. What the record cannot answer stays open: it is inconclusive, or
too little was recorded. Where one side ships the lever and the other does not, the verdicts are
opposite, and each of these has a cause from a closed list, found from the record's data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from experiments.decide.order import decide
from experiments.decide.wins import FAILING
from experiments.policy_replay.corpus import RecordedDecision
from experiments.policy_replay.evidence import (
    NamedPolicy,
    Untargeted,
    broken,
    checks_of,
    evidence_of,
    state_of,
)
from experiments.records import Decision, Outcome

TOO_LITTLE = "too-little-recorded"

VERDICTS = (Outcome.DEFAULT_ON, Outcome.GATED_OFF, Outcome.TERMINAL)

COLUMNS = (*(str(one) for one in VERDICTS), "inconclusive", TOO_LITTLE, "invalid")
"""What a record can be decided as; each row of the table is a recorded verdict."""

CLEAR_LOSS = -0.01
"""A loss of 1 % (log ratio), without a win, is a clear-cut OFF."""

CLEAR_WIN = 0.02
"""A win of 2 % (log ratio), with parity n/n and no axis worse by CLEAR_WORSE, is a clear-cut ON."""

CLEAR_WORSE = -0.005

Relation = Literal["same", "same-state", "opposite", "open"]
"""``same-state``: gated-OFF and terminal, which both leave the lever off; ``open``: no verdict."""

CAUSES: Mapping[str, str] = {
    "exact-left-off": "byte-exact and not slower, recorded OFF; the rules ship it",
    "win-left-off": "a win on a failing axis without a loss, recorded OFF",
    "neutral-kept-on": "no axis gains 1 %: recorded ON for another reason than speed",
    "loss-accepted": "an axis is worse than its margin, and was accepted for another one's gain",
    "slower-by-a-point": "byte-exact and slower by less than the margin: a single value has no "
    "interval that could take it for noise",
    "win-on-a-passing-axis": "the gain is on an axis that already met its target",
    "parity-accepted": "a parity gate failed, and the lever was kept ON",
    "policy-demands-more": "the parity that was claimed is weaker than this policy demands",
}
"""Why a verdict is opposite to the recorded one: the closed list."""


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """One recorded decision beside what the rules say.

    Attributes:
        column: one of :data:`COLUMNS`.
        clear: the verdict that the record clearly asks for; empty where it is not clear-cut.
        why: what the rules rest on, or what is missing.
        cause: a code of :data:`CAUSES` where the verdicts are opposite, else empty.
    """

    id: str
    lever: str
    recorded: str
    column: str
    reason: str
    why: str
    relation: Relation
    clear: str = ""
    cause: str = ""

    @property
    def clear_agrees(self) -> bool:
        """Whether a clear-cut record is decided as it was recorded."""
        return bool(self.clear) and self.column == self.recorded


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The whole corpus under one policy; ``left_out`` are ids with their recorded verdict."""

    policy: str
    unknown_state: Untargeted
    rows: tuple[ReplayRow, ...]
    left_out: tuple[tuple[str, str], ...]

    @property
    def table(self) -> Mapping[str, Mapping[str, int]]:
        """Recorded verdict, decided column, number of records."""
        counts = Counter((row.recorded, row.column) for row in self.rows)
        return {
            str(recorded): {column: counts[str(recorded), column] for column in COLUMNS}
            for recorded in VERDICTS
        }

    @property
    def clear(self) -> tuple[ReplayRow, ...]:
        """The clear-cut records."""
        return tuple(row for row in self.rows if row.clear)

    @property
    def clear_share(self) -> float | None:
        """Share of the clear-cut records that are decided as recorded; None without any."""
        agreed = sum(row.clear_agrees for row in self.clear)
        return agreed / len(self.clear) if self.clear else None

    @property
    def opposite(self) -> tuple[ReplayRow, ...]:
        """The records where one side ships the lever and the other does not."""
        return tuple(row for row in self.rows if row.relation == "opposite")

    @property
    def opposite_share(self) -> float:
        """Their share of all replayed records."""
        return len(self.opposite) / len(self.rows) if self.rows else 0.0

    @property
    def causes(self) -> Mapping[str, tuple[str, ...]]:
        """The ids of the opposite verdicts by their cause."""
        return {
            cause: tuple(row.id for row in self.opposite if row.cause == cause)
            for cause in CAUSES
            if any(row.cause == cause for row in self.opposite)
        }


def replayed(
    records: Sequence[RecordedDecision], policy: NamedPolicy, unknown_state: Untargeted
) -> ReplayReport:
    """Decide each record whose verdict is one on the lever."""
    return ReplayReport(
        policy=policy.name,
        unknown_state=unknown_state,
        rows=tuple(
            _row(record, outcome, policy, unknown_state)
            for record in records
            if (outcome := record.outcome) is not None
        ),
        left_out=tuple((one.id, one.verdict) for one in records if one.outcome is None),
    )


def decided(record: RecordedDecision, policy: NamedPolicy, unknown_state: Untargeted) -> Decision:
    """The decision on one record.

    Where no parity was recorded it is taken at its best, and only a verdict of OFF stands: it would
    be OFF whatever the parity had been.
    """
    found = decide(evidence_of(record, policy.policy, unknown_state))
    assert found is not None, "a recorded value is the last look, so there is a decision"
    unknown_parity = not checks_of(record) and found.outcome is not Outcome.GATED_OFF
    if not unknown_parity and found.reason != TOO_LITTLE:
        return found
    missing = "; ".join(_missing(record))
    return Decision(outcome=Outcome.INCONCLUSIVE, reason=TOO_LITTLE, detail=missing)


def clear_cut(record: RecordedDecision, unknown_state: Untargeted) -> Outcome | None:
    """The verdict that the record clearly asks for, or None.

    OFF: parity is broken, or an axis loses 1 % or more and none wins. ON: an axis that is not
    passing wins 2 % or more, none is worse by 0.5 %, and every counted gate is n/n.
    """
    effects = {axis.axis: axis.effect for axis in record.axes}
    known = [effect for effect in effects.values() if effect is not None]
    lost = min(known, default=0.0) <= CLEAR_LOSS
    if broken(record) or (lost and max(known) < -CLEAR_LOSS):
        return Outcome.GATED_OFF
    open_axes = [one for one in record.axes if state_of(one, unknown_state).state in FAILING]
    won = max((effects[one.axis] or 0.0 for one in open_axes), default=0.0) >= CLEAR_WIN
    whole = [gate.whole for gate in record.parity if gate.counted]
    if won and len(known) == len(effects) and min(known) > CLEAR_WORSE and whole and all(whole):
        return Outcome.DEFAULT_ON
    return None


def _row(
    record: RecordedDecision, recorded: Outcome, policy: NamedPolicy, unknown_state: Untargeted
) -> ReplayRow:
    found = decided(record, policy, unknown_state)
    relation = _relation(recorded, found.outcome)
    return ReplayRow(
        id=record.id,
        lever=record.lever,
        recorded=str(recorded),
        column=TOO_LITTLE if found.reason == TOO_LITTLE else str(found.outcome),
        reason=found.reason,
        why=found.detail,
        relation=relation,
        clear=str(clear_cut(record, unknown_state) or ""),
        cause=_cause(record, policy, found) if relation == "opposite" else "",
    )


def _relation(recorded: Outcome, found: Outcome) -> Relation:
    if found not in VERDICTS:
        return "open"
    if found is recorded:
        return "same"
    return "opposite" if Outcome.DEFAULT_ON in (found, recorded) else "same-state"


def _cause(record: RecordedDecision, policy: NamedPolicy, found: Decision) -> str:
    """A code of the closed list, by the rule that decided and by what the record holds."""
    won = any((one.effect or 0.0) >= policy.policy.smallest_gain for one in record.axes)
    return {
        "byte-exact": "exact-left-off",
        "failing-axis-win": "win-left-off",
        "regression": "loss-accepted",
        "slower": "slower-by-a-point",
        "not-worth-keeping": "neutral-kept-on",
        "no-failing-axis-win": "win-on-a-passing-axis" if won else "neutral-kept-on",
        "parity-failed": "parity-accepted" if broken(record) else "policy-demands-more",
    }[found.reason]


def _missing(record: RecordedDecision) -> list[str]:
    """What was not written down."""
    said = [] if record.axes else ["no axis was recorded"]
    said += [
        f"{axis.axis} has no value of both arms" for axis in record.axes if axis.effect is None
    ]
    if not checks_of(record):
        gates = ", ".join(gate.gate for gate in record.parity)
        said.append(f"no parity gate has a count ({gates})" if gates else "no parity was recorded")
    return said
