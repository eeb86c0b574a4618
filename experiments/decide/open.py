"""The end without a verdict: what is undecided, and what would settle it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from experiments import formats
from experiments.decide.evidence import Evidence
from experiments.decide.guards import GuardCheck, effect_text, guard_checks
from experiments.decide.wins import FAILING, proven_wins, without_win
from experiments.plan import BLOCK_PAIRS
from experiments.power import pairs_to_settle
from experiments.records import AxisState, Decision, Effect, Outcome
from experiments.sequential import nominal_p
from experiments.stats import half_width, untrusted


@dataclass(frozen=True, slots=True)
class Question:
    """One thing that is not known: its reason code, its axis, its text, and pairs that settle it.

    ``pairs`` (in all) is None where no number of pairs does.
    """

    reason: str
    axis: str
    text: str
    pairs: int | None


def settle(evidence: Evidence) -> Decision:
    """Inconclusive: the reason, every open question, and the pairs and minutes that are missing."""
    questions = tuple(_questions(evidence)) if evidence.look is not None else ()
    reason = _reason(evidence, questions)
    asked = [question for question in questions if question.reason == reason] or list(questions)
    needed = _pairs_needed(evidence, asked)
    minutes = _minutes(evidence, needed)
    return Decision(
        outcome=Outcome.INCONCLUSIVE,
        reason=reason,
        axes=tuple(dict.fromkeys(question.axis for question in asked)),
        undecided=tuple(question.text for question in questions),
        detail=_detail(evidence, asked, needed, minutes),
        pairs_needed=needed,
        minutes_needed=minutes,
    )


def _reason(evidence: Evidence, questions: tuple[Question, ...]) -> str:
    """The budget where it ended the run early, else the first question in order of weight."""
    last = evidence.look is not None and evidence.look.last
    if evidence.budget_spent and not last:
        return "budget-spent"
    found = {question.reason for question in questions}
    order = (
        "too-little-recorded",
        "autocorrelated",
        "oracle-missing",
        "axis-state-undecided",
        "win-undecided",
        "guard-undecided",
    )
    return next((reason for reason in order if reason in found), "too-little-recorded")


def _questions(evidence: Evidence) -> Iterator[Question]:
    """Everything that stands between the evidence and a verdict."""
    yield from _unrecorded(evidence)
    for guard in guard_checks(evidence):
        if not guard.inside and guard.effect is not None:
            yield _guard_question(evidence, guard, guard.effect)
    if not evidence.ships_exact:
        yield from _win_questions(evidence)


def _unrecorded(evidence: Evidence) -> Iterator[Question]:
    for axis in evidence.engaged:
        if evidence.effect(axis) is None:
            yield Question("too-little-recorded", axis, f"{axis} has no value in some pair", None)
    for guard in guard_checks(evidence):
        if guard.effect is None and guard.axis not in evidence.engaged:
            yield Question("too-little-recorded", guard.axis, guard.describe(), None)


def _guard_question(evidence: Evidence, guard: GuardCheck, effect: Effect) -> Question:
    if untrusted(effect):
        return _correlated(effect)
    pairs = pairs_to_settle(effect, -guard.margin, _final_p(evidence))
    return Question("guard-undecided", guard.axis, f"guard {guard.describe()}", pairs)


def _win_questions(evidence: Evidence) -> Iterator[Question]:
    """A win on a failing axis; or the state of an axis, where a win on it would ship."""
    gain = evidence.policy.smallest_gain
    effects = [e for axis in evidence.engaged if (e := evidence.effect(axis)) is not None]
    failing = [e for e in effects if evidence.state(e.axis).state in FAILING]
    unknown = [e for e in effects if evidence.state(e.axis).state == "undecided"]
    if proven_wins(failing, gain):
        return
    won = {effect.axis for effect in proven_wins([*failing, *unknown], gain)}
    hindered = [effect for effect in unknown if effect.axis in won]
    open_failing = [effect for effect in failing if not without_win(effect, gain)]
    for effect in hindered or ([] if open_failing else unknown):
        if not without_win(effect, gain):
            yield _state_question(evidence.state(effect.axis))
    if hindered:
        return
    for effect in open_failing or unknown:
        if not without_win(effect, gain):
            yield _win_question(evidence, effect, len(failing) or len(unknown))


def _win_question(evidence: Evidence, effect: Effect, family: int) -> Question:
    """A win that is worth keeping must clear zero; a smaller estimate must stay below the gain."""
    if untrusted(effect):
        return _correlated(effect)
    gain = evidence.policy.smallest_gain
    final = _final_p(evidence)
    if effect.estimate >= gain:
        pairs = pairs_to_settle(effect, 0.0, final / family)
    else:
        pairs = pairs_to_settle(effect, gain, final)
    return Question("win-undecided", effect.axis, f"win {effect_text(effect)}", pairs)


def _state_question(state: AxisState) -> Question:
    if state.missing:
        return Question(
            "oracle-missing", state.axis, f"state of {state.axis}: {state.missing}", None
        )
    shown = formats.ratio(state.ratio or math.nan, state.lower, state.upper)
    text = f"state of {state.axis}: {shown} of its target ({state.target})"
    return Question("axis-state-undecided", state.axis, text, _pairs_for_state(state))


def _pairs_for_state(state: AxisState) -> int | None:
    """Pairs in all whose oracle pairs, one a block, would tell the ratio from its target."""
    if state.ratio is None or state.upper is None or state.ratio <= 0 or state.runs < 2:
        return None
    distance, half = abs(math.log(state.ratio)), math.log(state.upper / state.ratio)
    if distance == 0:
        return None
    return math.ceil(state.runs * (half / distance) ** 2) * BLOCK_PAIRS


def _correlated(effect: Effect) -> Question:
    text = f"{effect_text(effect)}: pairs stay correlated (lag-1 r = {effect.autocorrelation:.2f})"
    return Question("autocorrelated", effect.axis, text, None)


def _final_p(evidence: Evidence) -> float:
    return nominal_p(evidence.looks, len(evidence.looks) - 1, evidence.method)


def _pairs_needed(evidence: Evidence, asked: list[Question]) -> int | None:
    """Further pairs beyond those measured; None where pairs alone do not settle it."""
    if evidence.look is None:
        return max(0, evidence.looks[0] - evidence.pairs)
    totals = [question.pairs for question in asked]
    if not totals or None in totals:
        return None
    return max(1, max(total for total in totals if total is not None) - evidence.pairs)


def _minutes(evidence: Evidence, pairs: int | None) -> float | None:
    if pairs is None or evidence.seconds_per_pair is None:
        return None
    return pairs * evidence.seconds_per_pair / 60


def _detail(
    evidence: Evidence, asked: list[Question], needed: int | None, minutes: float | None
) -> str:
    parts = [f"undecided: {'; '.join(question.text for question in asked)}"] if asked else []
    if evidence.look is None:
        parts.append(
            f"{formats.count(evidence.pairs, 'valid pair')} of the {evidence.looks[0]} "
            "that the first look needs"
        )
    else:
        parts += list(_seen(evidence))
    if needed is None:
        parts.append("more pairs alone would not settle it")
    else:
        time = "" if minutes is None else f", about {formats.duration(minutes * 60)}"
        parts.append(f"{formats.count(needed, 'further pair')}{time} would settle it")
    return "; ".join(parts)


def _seen(evidence: Evidence) -> Iterator[str]:
    effects = (evidence.effect(axis) for axis in evidence.engaged)
    widths = [half_width(effect) for effect in effects if effect is not None]
    if widths:
        yield f"the smallest effect that could have been seen is {formats.margin(max(widths))}"
