"""The order of decision: the first rule that holds decides, and there is no default branch to ON.

Pure functions of the evidence. Before timing: :func:`decide_before_timing`. At each planned look:
:func:`decide`, which gives None where the next look must come first.
"""

from __future__ import annotations

from dataclasses import dataclass

from experiments import formats
from experiments.decide.early import decide_before_timing, invalid, parity_notes
from experiments.decide.evidence import Evidence
from experiments.decide.guards import GuardCheck, effect_text, guard_checks, proven_worse
from experiments.decide.open import settle
from experiments.decide.samples import decide_samples, loss_text
from experiments.decide.wins import FAILING, OPEN, proven_wins, without_win
from experiments.records import AxisState, Decision, Effect, Outcome
from experiments.stats import half_width, holm, p_below, untrusted
from experiments.steadiness import slow_starts

__all__ = ["decide", "decide_before_timing", "decide_effects"]


def decide(evidence: Evidence) -> Decision | None:
    """The decision at this moment, or None where the run goes on to its next look.

    After the last look, or with the budget spent, there always is one.
    """
    early = decide_before_timing(evidence) or decide_samples(evidence)
    if early is not None:
        return early
    if evidence.look is None and not evidence.budget_spent:
        return None
    if evidence.look is not None and evidence.parity is None:
        return invalid("check-empty", "no parity battery was run, so no speed may count")
    return decide_effects(evidence)


def decide_effects(evidence: Evidence) -> Decision | None:
    """Steps 5 to 10: guards, byte-exactness, wins, terminal, and what is left open."""
    found = _by_rule(_Reading.of(evidence)) if evidence.look is not None else None
    if found is None:
        ended = evidence.budget_spent or (evidence.look is not None and evidence.look.last)
        found = settle(evidence) if ended else None
    if found is None:
        return None
    return found.model_copy(
        update={
            "smallest_visible": _smallest_visible(evidence),
            "notes": (*found.notes, *_notes(evidence)),
        }
    )


@dataclass(frozen=True, slots=True)
class _Reading:
    """The evidence of one look as the rules read it."""

    evidence: Evidence
    guards: tuple[GuardCheck, ...]
    primaries: tuple[Effect, ...]
    states: dict[str, AxisState]

    @classmethod
    def of(cls, evidence: Evidence) -> _Reading:
        effects = (evidence.effect(axis) for axis in evidence.engaged)
        return cls(
            evidence,
            guard_checks(evidence),
            tuple(effect for effect in effects if effect is not None),
            {axis: evidence.state(axis) for axis in evidence.engaged},
        )

    @property
    def complete(self) -> bool:
        """Whether every engaged primary has an effect."""
        return len(self.primaries) == len(self.evidence.engaged)

    @property
    def guards_inside(self) -> bool:
        return all(guard.inside for guard in self.guards)

    @property
    def gain(self) -> float:
        return self.evidence.policy.smallest_gain

    @property
    def wins(self) -> tuple[Effect, ...]:
        """Wins proven on failing axes."""
        family = [e for e in self.primaries if self.states[e.axis].state in FAILING]
        return proven_wins(family, self.gain)

    @property
    def slower(self) -> tuple[Effect, ...]:
        """Primaries proven slower, Holm over the primaries."""
        shares = [p_below(effect, 0.0) / effect.nominal_p for effect in self.primaries]
        rejected = holm(shares, 1.0)
        both = zip(self.primaries, rejected, strict=True)
        return tuple(effect for effect, proven in both if proven and effect.upper < 0)


def _by_rule(reading: _Reading) -> Decision | None:
    """Steps 5 to 9: the first that holds."""
    for rule in (_regression, _exact, _failing_axis_win, _not_worth_keeping, _no_win):
        found = rule(reading)
        if found is not None:
            return found
    return None


def _regression(reading: _Reading) -> Decision | None:
    worse = proven_worse(reading.guards)
    if not worse:
        return None
    return Decision(
        outcome=Outcome.GATED_OFF,
        reason="regression",
        axes=tuple(dict.fromkeys(guard.axis for guard in worse)),
        detail="proven worse: " + "; ".join(guard.describe() for guard in worse),
    )


def _exact(reading: _Reading) -> Decision | None:
    """Byte-exact and no win asked for: OFF if proven slower, ON once every guard is inside."""
    if not reading.evidence.ships_exact:
        return None
    slower = reading.slower
    if slower:
        return Decision(
            outcome=Outcome.GATED_OFF,
            reason="slower",
            axes=tuple(effect.axis for effect in slower),
            detail="byte-exact and proven slower: " + "; ".join(map(effect_text, slower)),
        )
    if not (reading.guards_inside and reading.complete):
        return None
    return Decision(
        outcome=Outcome.DEFAULT_ON,
        reason="byte-exact",
        axes=reading.evidence.engaged,
        detail="nothing changes in any result and every guard holds: "
        + "; ".join(guard.describe() for guard in reading.guards),
    )


def _failing_axis_win(reading: _Reading) -> Decision | None:
    wins = reading.wins
    if not wins or not reading.guards_inside:
        return None
    shown = (f"{effect_text(win)}, {_state_text(reading.states[win.axis])}" for win in wins)
    return Decision(
        outcome=Outcome.DEFAULT_ON,
        reason="failing-axis-win",
        axes=tuple(win.axis for win in wins),
        detail="proven on a failing axis: " + "; ".join(shown),
    )


def _not_worth_keeping(reading: _Reading) -> Decision | None:
    gain = reading.gain
    small = all(
        not untrusted(effect) and -gain <= effect.lower and effect.upper <= gain
        for effect in reading.primaries
    )
    if not (small and reading.complete and reading.guards_inside):
        return None
    return Decision(
        outcome=Outcome.TERMINAL,
        reason="not-worth-keeping",
        axes=reading.evidence.engaged,
        detail=f"every primary is proven within {formats.margin(gain)} of no change: "
        + "; ".join(map(effect_text, reading.primaries)),
    )


def _no_win(reading: _Reading) -> Decision | None:
    """ON is excluded: no axis is open, or each open one is proven without a win."""
    if reading.evidence.ships_exact:
        return None
    still_open = [axis for axis, state in reading.states.items() if state.state in OPEN]
    effects = {effect.axis: effect for effect in reading.primaries}
    if not all(axis in effects and without_win(effects[axis], reading.gain) for axis in still_open):
        return None
    shown = "; ".join(
        f"{effect_text(effects[axis])}, {_state_text(state)}"
        for axis, state in reading.states.items()
        if axis in effects
    )
    why = "each failing axis is proven without a win" if still_open else "no axis is failing"
    return Decision(
        outcome=Outcome.GATED_OFF,
        reason="no-failing-axis-win",
        axes=tuple(still_open) or reading.evidence.engaged,
        detail=f"{why}: {shown}",
    )


def _state_text(state: AxisState) -> str:
    if state.state in ("wanted", "ignored"):
        return f"no target set ({state.state})"
    if state.ratio is None:
        return f"{state.state} ({state.missing or state.target})"
    return f"{state.state} at {formats.ratio(state.ratio, state.lower, state.upper)} of its target"


def _smallest_visible(evidence: Evidence) -> float | None:
    """The largest half-width among the engaged primaries: what any of them would have shown."""
    widths = [half_width(e) for axis in evidence.engaged if (e := evidence.effect(axis))]
    return max(widths, default=None)


SAME_WORK = (
    "both arms ran the same operators and kernels in their witness passes: that their paths differ "
    "is the lever's word, or lies in what no operator shows (variables, threads, memory)"
)


def _notes(evidence: Evidence) -> tuple[str, ...]:
    """What belongs beside the verdict: inert axes, missing targets, losses, units, parity."""
    inert = [axis for axis in evidence.primaries if axis not in evidence.engaged]
    untargeted = [axis for axis in evidence.engaged if evidence.state(axis).state == "wanted"]
    effects = evidence.look.effects if evidence.look else ()
    doubled = [effect.axis for effect in effects if effect.unit_pairs == 2]
    notes = []
    if inert:
        notes.append(f"inert, the arms ran the same plan: {', '.join(inert)}")
    if evidence.same_work:
        notes.append(SAME_WORK)
    if untargeted:
        notes.append(f"no target set: {', '.join(untargeted)}")
    if evidence.lost_pairs:
        notes.append(loss_text(evidence.lost, evidence.pairs))
    if doubled:
        notes.append(f"pairs correlated, two make a unit: {', '.join(doubled)}")
    if evidence.unpinned:
        found = "; ".join(evidence.unpinned)
        notes.append(f"byte-exactness alone ships nothing here, it needs pinned autotune: {found}")
    return (*notes, *slow_starts(evidence.samples), *parity_notes(evidence))
