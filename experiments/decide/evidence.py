"""All that a decision may look at, at one moment of a run; nothing else enters a decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from experiments.autotuned import changing_winners
from experiments.parity_records import ParityReport
from experiments.records import ArmFailure, AxisState, Effect, Look, LostPair, Sample
from experiments.sequential import Method
from experiments.spec import DEFAULT_LOOKS
from experiments.witness_records import Witness
from levers.policy import Axis, GatingPolicy, Guard, ParityClass


@dataclass(frozen=True, slots=True)
class Ceiling:
    """An absolute guard on one axis: how far the candidate stays below its ceiling.

    ``effect`` is the log ratio of ceiling over the candidate's value, > 0 is below it; None where
    the capacity of the axis is not known or a value is missing.
    """

    axis: str
    guard: Guard
    effect: Effect | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a run at one moment.

    Attributes:
        policy: the bar, set before the first sample.
        axes: the axes of the workload.
        looks: the planned looks, in valid pairs.
        faults: reasons that end the run, found by the runner (code of ``invalid``, text).
        samples: all samples up to this moment, lost ones included.
        lost: lost runs up to this moment.
        pairs: valid pairs so far.
        look: the effects and states of the last look taken, or None before the first.
        ceilings: the absolute guards at that look.
        impossible: per axis, the value that no implementation can beat on this device.
        compares_oracle: an oracle does the same work, so that its inputs must be equal.
        oracle_mode: how the oracle must run; empty where that is not known.
        budget_spent: no further pair will be measured.
        seconds_per_pair: wall-clock of a pair with its share of oracle runs; None if unknown.
    """

    policy: GatingPolicy
    axes: tuple[Axis, ...]
    looks: tuple[int, ...] = DEFAULT_LOOKS
    method: Method = "group-sequential"
    faults: tuple[tuple[str, str], ...] = ()
    failures: tuple[ArmFailure, ...] = ()
    witnesses: tuple[Witness, ...] = ()
    parity: ParityReport | None = None
    samples: tuple[Sample, ...] = ()
    lost: tuple[LostPair, ...] = ()
    pairs: int = 0
    look: Look | None = None
    ceilings: tuple[Ceiling, ...] = ()
    impossible: Mapping[str, float] = field(default_factory=dict)
    compares_oracle: bool = False
    oracle_mode: str = ""
    budget_spent: bool = False
    seconds_per_pair: float | None = None

    @property
    def parity_class(self) -> ParityClass:
        """What the run may call itself; byte-exact needs a reference that equals itself."""
        if self.parity is None:
            return ParityClass.BROKEN
        found = self.parity.parity_class
        if any(check.fault == "not-deterministic" for check in self.parity.checks):
            found = found.weaker(ParityClass.LOSSLESS)
        return found

    @property
    def ships_exact(self) -> bool:
        """Whether byte-exactness alone may ship: nothing changes, so no win is asked for.

        It may not where an autotuner chose other kernels in other processes of one arm: the bits
        that were compared are then those of one choice.
        """
        exact = self.parity_class is ParityClass.BYTE_EXACT
        return exact and not self.policy.needs_win and not self.unpinned

    @property
    def unpinned(self) -> tuple[str, ...]:
        """Kernels whose autotuned configuration is not the same in all processes of an arm."""
        return changing_winners(self.witnesses, self.samples)

    @property
    def primaries(self) -> tuple[str, ...]:
        """The primary axes of this workload, inert ones included."""
        return tuple(axis.name for axis in self.axes if self.policy.is_primary(axis.name))

    @property
    def inert(self) -> tuple[str, ...]:
        """The axes on which both arms ran the same plan."""
        ref, cand = self.plans("ref"), self.plans("cand")
        return tuple(axis for axis in ref if ref[axis] == cand.get(axis))

    @property
    def engaged(self) -> tuple[str, ...]:
        """The primary axes on which the arms ran different plans.

        An axis for which no plan was seen (it has no launch of its own) is engaged where any is.
        """
        inert = self.inert
        return tuple(name for name in self.primaries if name not in inert)

    @property
    def lost_pairs(self) -> int:
        """Distinct pairs lost; a lost oracle run costs no pair."""
        return len({one.pair for one in self.lost if one.arm in ("ref", "cand")})

    def plans(self, arm: str) -> Mapping[str, str]:
        """The plans that an arm's witnesses saw, by axis."""
        return {
            axis: plan
            for witness in self.witnesses
            if witness.arm == arm
            for axis, plan in witness.plans.items()
        }

    def counted(self, arm: str) -> Mapping[str, str]:
        """What an arm's sites counted, in nobody's words; empty where that was not recorded."""
        return {
            where: what
            for witness in self.witnesses
            if witness.arm == arm
            for where, what in witness.counted.items()
        }

    @property
    def same_work(self) -> bool:
        """Whether both arms did the same work in their witness passes, as far as it was seen."""
        seen = {witness.arm: witness.work for witness in self.witnesses}
        return bool(seen.get("ref")) and seen.get("ref") == seen.get("cand")

    def effect(self, axis: str) -> Effect | None:
        """The effect on an axis at the last look, if there is one."""
        effects = self.look.effects if self.look else ()
        return next((effect for effect in effects if effect.axis == axis), None)

    def state(self, axis: str) -> AxisState:
        """The state of a primary axis at the last look; undecided where none was read."""
        states = self.look.states if self.look else ()
        for state in states:
            if state.axis == axis:
                return state
        return AxisState(axis=axis, state="undecided", missing="no state was read")
