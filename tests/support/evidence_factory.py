"""Builders of evidence for tests of the decision: effects in percent, states, checks, samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scipy.special import stdtrit

from experiments.decide.evidence import Evidence
from experiments.parity_records import CheckResult, ParityReport
from experiments.records import Arm, AxisState, Effect, Look, LostPair, Sample, StateName
from experiments.witness_records import Witness
from levers.policy import Axis, GatingPolicy, Guard, ParityClass

GUARD = "decode/itl_ms/p95"
C1, C2, C4, C8 = (f"decode/tok_s/c{c}" for c in (1, 2, 4, 8))
AXES = (*(Axis(name, "tok/s", True) for name in (C1, C2, C4, C8)), Axis(GUARD, "ms", False))
LOOKS = (6, 9, 13, 18, 25, 40)
P = 0.0348

LOSSLESS = ParityClass.LOSSLESS
EXACT = ParityClass.BYTE_EXACT


def effect(axis: str, text: tuple[float, float, float], p: float = P, **changes: Any) -> Effect:
    """An effect from (estimate, lower, upper) in percent (log ratios x 100), by its half-width."""
    estimate, lower, upper = (value / 100 for value in text)
    dof = 38
    stderr = (upper - lower) / 2 / float(stdtrit(dof, 1 - p / 2))
    values: dict[str, Any] = {
        "axis": axis,
        "kind": "t",
        "units": 40,
        "estimate": estimate,
        "lower": lower,
        "upper": upper,
        "sd": stderr * 40**0.5,
        "nominal_p": p,
        "stderr": stderr,
        "dof": dof,
        "autocorrelation": 0.0,
    }
    return Effect(**{**values, **changes})


def with_p(axis: str, estimate: float, p: float, nominal: float) -> Effect:
    """An effect (percent) whose two-sided p against zero is ``p`` at a look of ``nominal``."""
    dof = 23
    stderr = estimate / 100 / float(stdtrit(dof, 1 - p / 2))
    half = stderr * float(stdtrit(dof, 1 - nominal / 2))
    return Effect(
        axis=axis,
        kind="t",
        units=25,
        estimate=estimate / 100,
        lower=estimate / 100 - half,
        upper=estimate / 100 + half,
        sd=stderr * 5,
        nominal_p=nominal,
        stderr=stderr,
        dof=dof,
    )


def repeating(axis: str, percent: float) -> Effect:
    """A deterministic effect of so many percent."""
    value = percent / 100
    return Effect(
        axis=axis,
        kind="deterministic",
        units=40,
        estimate=value,
        lower=value,
        upper=value,
        sd=0.0,
        nominal_p=P,
    )


def state(axis: str, name: StateName, ratio: float | None = None, **changes: Any) -> AxisState:
    middle = ratio or {"failing": 0.965, "passing": 1.02, "undecided": 1.0}.get(name)
    values: dict[str, Any] = {"axis": axis, "state": name}
    if middle is not None:
        values |= {"target": ">= 1.00 x sdpa", "ratio": middle, "runs": 10, "oracle": "sdpa"}
        values |= {"lower": middle * 0.99, "upper": middle * 1.01}
    return AxisState(**{**values, **changes})


def passed(name: str, total: int = 114, **changes: Any) -> CheckResult:
    values: dict[str, Any] = {
        "name": name,
        "status": "passed",
        "passed": total,
        "total": total,
        "strongest": LOSSLESS,
    }
    return CheckResult(**{**values, **changes})


def failed(name: str, good: int, total: int, **changes: Any) -> CheckResult:
    values: dict[str, Any] = {
        "name": name,
        "status": "failed",
        "passed": good,
        "total": total,
        "strongest": ParityClass.BROKEN,
    }
    return CheckResult(**{**values, **changes})


def parity(claimed: ParityClass, *checks: CheckResult) -> ParityReport:
    """A report; without checks, all that was compared is as strong as claimed."""
    usual = (passed("op", strongest=claimed), passed("tokens", 16, strongest=claimed))
    return ParityReport(checks=checks or usual, claimed=claimed)


def witness(arm: Arm, plans: Mapping[str, str], **changes: Any) -> Witness:
    return Witness(arm=arm, plans=plans, launches={"site": len(plans)}, **changes)


def witnesses(axes: Sequence[str] = (C1,), equal: Sequence[str] = ()) -> tuple[Witness, ...]:
    """Both arms' witnesses: plans differ on ``axes`` and are equal on ``equal``."""
    ref = dict.fromkeys((*axes, *equal), "num_splits=7")
    cand = {**ref, **dict.fromkeys(axes, "num_splits=3")}
    return witness("ref", ref), witness("cand", cand)


def policy(claims: ParityClass = LOSSLESS, **changes: Any) -> GatingPolicy:
    values: dict[str, Any] = {
        "primaries": ("decode/tok_s/c*",),
        "guards": (Guard(GUARD),),
        "claims": claims,
    }
    return GatingPolicy(**{**values, **changes})


def look(effects: Sequence[Effect], states: Sequence[AxisState], last: bool = True) -> Look:
    index = 5 if last else 4
    return Look(
        index=index,
        pairs=LOOKS[index],
        effects=tuple(effects),
        states=tuple(states),
        last=last,
    )


def evidence(
    effects: Sequence[Effect] = (),
    states: Sequence[AxisState] = (),
    claims: ParityClass = LOSSLESS,
    last: bool = True,
    **changes: Any,
) -> Evidence:
    """Evidence at a look; the axes are those that have an effect, all of them engaged."""
    names = [one.axis for one in effects] or [C1, GUARD]
    primaries = [name for name in names if name.startswith("decode/tok_s/")]
    taken = look(effects, states, last) if effects else None
    values: dict[str, Any] = {
        "policy": policy(claims),
        "axes": tuple(axis for axis in AXES if axis.name in names),
        "witnesses": witnesses(primaries),
        "parity": parity(claims),
        "pairs": taken.pairs if taken else 0,
        "look": taken,
        "seconds_per_pair": 6.0,
    }
    return Evidence(**{**values, **changes})


def sample(pair: int, arm: Arm, values: Mapping[str, float], **changes: Any) -> Sample:
    fields: dict[str, Any] = {
        "pair": pair,
        "arm": arm,
        "position": 0 if arm in ("ref", "oracle-ref") else 1,
        "values": values,
        "start_s": 0.1,
        "warmup_s": 0.2,
        "measured_s": 2.0,
        "wall_s": 2.5,
        "started_at": "2026-11-29T16:00:00+00:00",
        "inputs_digest": "d1",
        "outputs_count": 256,
    }
    return Sample(**{**fields, **changes})


def lost(count: int, arm: Arm = "cand", cause: str = "foreign process") -> tuple[LostPair, ...]:
    return tuple(LostPair(pair=100 + i, arm=arm, cause=cause) for i in range(count))
