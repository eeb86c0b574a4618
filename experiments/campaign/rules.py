"""When a row is met, TERMINAL or open, when it re-opens, and when it may be closed; pure.

"Terminal" means that nothing is left to measure. A lever that cannot run in this scope has nothing
to measure here: it does not keep the row open, stands among the paths that were not exhausted with
its reason, and lowers the confidence. The state is drawn from facts each time, so that a row opens
again by itself once a lever is added, the stack changes or a verdict falls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.campaign.records import (
    AxisReached,
    AxisStanding,
    CampaignRow,
    Confidence,
    LeverStanding,
    PathLeft,
    RowState,
)
from experiments.records import Outcome
from levers.errors import UsageError

MANY_DOUBTS = 3
"""From so many doubts on the confidence is low."""


@dataclass(frozen=True, slots=True)
class State:
    """The state of a row and what it rests on."""

    state: RowState
    why: str


def standing(lower: float, upper: float) -> AxisStanding:
    """Whether a target is reached, from the interval of value over target."""
    if lower >= 1:
        return "met"
    return "missed" if upper < 1 else "undecided"


def state_of(
    axes: Sequence[AxisReached],
    levers: Sequence[LeverStanding],
    unnamed: Sequence[str] = (),
    unbound: str = "",
) -> State:
    """The state of a row.

    Args:
        axes: what ships against each target.
        levers: all levers of the file.
        unnamed: levers of the catalog for this workload that the file does not name.
        unbound: why what ships was not measured as a whole; empty where it was.
    """
    left = [one.lever for one in levers if one.state == "open"]
    if unbound:
        also = f"; open: {', '.join(left)}" if left else ""
        return State("open", f"what ships was not measured: {unbound}{also}")
    unmeasured = [one.axis for one in axes if one.state == "unmeasured"]
    if unmeasured:
        return State("open", f"not measured: {', '.join(unmeasured)}")
    if all(one.state == "met" for one in axes):
        return State("met", f"all {len(axes)} targets are reached")
    if left:
        return State("open", f"without a valid verdict here: {', '.join(left)}")
    if unnamed:
        return State("open", f"in the catalog and not named by the file: {', '.join(unnamed)}")
    if not any(one.state == "decided" for one in levers):
        return State("open", "no lever has a verdict here, so nothing was tried")
    missed = [one.axis for one in axes if one.state == "missed"]
    if not missed:
        undecided = ", ".join(one.axis for one in axes if one.state == "undecided")
        return State("open", f"no target is missed, and undecided: {undecided}; more blocks tell")
    return State(
        "TERMINAL", f"missed: {', '.join(missed)}; every lever has its verdict in this scope"
    )


def paths_left(paths: Sequence[PathLeft], levers: Sequence[LeverStanding]) -> tuple[PathLeft, ...]:
    """The paths of the file, and the levers that cannot run in this scope."""
    away = (one for one in levers if one.state == "unavailable")
    return (*paths, *(PathLeft(name=o.lever, state="unavailable", reason=o.why) for o in away))


def doubts_of(
    axes: Sequence[AxisReached],
    levers: Sequence[LeverStanding],
    paths: Sequence[PathLeft],
    *,
    residual: bool,
    untold: Sequence[str] = (),
) -> tuple[str, ...]:
    """What a reader must hold against the statement, since such statements have been wrong.

    ``untold`` are the models of the campaign on which the tokens of what ships are not compared.
    """
    found = []
    decided = [one for one in levers if one.state == "decided"]
    weak = [one.lever for one in decided if "unconfirmed" in one.default_state]
    unavailable = [one.name for one in paths if one.state == "unavailable"]
    unbuilt = [one.name for one in paths if one.state == "unbuilt"]
    undecided = [one.axis for one in axes if one.state == "undecided"]
    bare = [one.axis for one in axes if one.ratio is not None and one.lower == one.upper]
    unmoved = [one.lever for one in levers if one.credited in ("none", "mixed", "loss")]
    for names, text in (
        (weak, "default-ON without a second run that agrees: {}"),
        (unavailable, "cannot run in this scope: {}"),
        (unbuilt, "paths that nobody has built: {}"),
        (undecided, "targets whose interval holds the target: {}"),
        (bare, "single values without an interval: {}"),
        (unmoved, "default-ON and no plain gain in the binding run: {}"),
        (untold, "the tokens of what ships are not compared on: {}"),
    ):
        if names:
            found.append(text.format(", ".join(names)))
    if not residual:
        found.append("the residual is not attributed: there is no profile of what ships")
    return tuple(found)


def confidence_of(state: RowState, doubts: Sequence[str]) -> Confidence:
    """In a word: ``high`` without doubts, ``moderate`` with few; an open row claims nothing."""
    if state == "open":
        return "none"
    if not doubts:
        return "high"
    return "low" if len(doubts) >= MANY_DOUBTS else "moderate"


def reopened(before: CampaignRow | None, now: CampaignRow) -> tuple[str, ...]:
    """Why a row that was met or TERMINAL is open now; empty where it is not, or never was."""
    if before is None or now.state != "open":
        return ()
    if before.state == "open":
        return before.reopened
    found = _levers_moved(before, now)
    found += [f"the stack changed: {text}" for text in changes(before.versions, now.versions)]
    found += [f"no longer bound: {now.unbound}"] if now.unbound else []
    if not found and before.file_digest != now.file_digest:
        found.append("the campaign file changed")
    if not found:
        found.append(now.why)
    return tuple(found)


def _levers_moved(before: CampaignRow, now: CampaignRow) -> list[str]:
    """Levers that came, and levers whose verdict does not stand any more."""
    was = {one.lever: one for one in before.levers}
    found = [f"{name} was added to the catalog" for name in now.unnamed]
    for one in now.open_levers:
        earlier = was.get(one.lever)
        if earlier is None:
            found.append(f"{one.lever} was added to the file")
        elif earlier.state == "unavailable":
            found.append(f"{one.lever} can run here now")
        elif earlier.state == "decided":
            found.append(f"the verdict of {one.lever} fell: {one.why}")
    return found


def changes(then: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """What differs between two stacks; one that is not known differs in nothing."""
    if not then or not now:
        return ()
    names = sorted({*then, *now})
    return tuple(
        f"{name} {then.get(name, 'absent')} -> {now.get(name, 'absent')}"
        for name in names
        if then.get(name) != now.get(name)
    )


def closed(row: CampaignRow, *, name: str, at: str) -> CampaignRow:
    """The row as a person closes it.

    Raises:
        UsageError: it is open; says what is left and how to settle it.
    """
    if row.state == "open":
        left = ", ".join(one.lever for one in row.open_levers)
        cure = f"levergate campaign run {row.name} measures what is left"
        if left:
            cure += f"; or decline {left} in {row.file or 'its file'} under [[paths]] with a reason"
        raise UsageError(f"campaign {row.name} is open: {row.why}", cure=cure)
    return CampaignRow.model_validate({**dict(row), "closed_by": name, "closed_at": at})


def ships(levers: Sequence[LeverStanding]) -> tuple[str, ...]:
    """The levers that are on by default, with their settings."""
    on = (one for one in levers if one.outcome is Outcome.DEFAULT_ON)
    return tuple(f"{one.lever}={one.setting}" for one in on)
