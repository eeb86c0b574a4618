"""Every decision scenario of the design, by its number: a whole situation and its one outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from experiments.decide.early import decide_before_timing
from experiments.decide.evidence import Evidence
from experiments.decide.order import decide
from experiments.records import ArmFailure, Decision
from levers.policy import Axis, Guard, ParityClass
from tests.support.evidence_factory import (
    AXES,
    C1,
    C2,
    C4,
    C8,
    EXACT,
    GUARD,
    LOOKS,
    effect,
    evidence,
    failed,
    lost,
    parity,
    passed,
    policy,
    repeating,
    sample,
    state,
    with_p,
    witnesses,
)

NEXT = ("next look", "")
MEMORY = "memory/peak_bytes"
WIN, FINE = (5, 4, 6), (0, -0.5, 0.5)


@dataclass(frozen=True)
class Row:
    """One row: the evidence, the outcome and reason, and words that the decision must say."""

    build: Callable[[], Evidence]
    outcome: tuple[str, str]
    says: tuple[str, ...] = ()
    check: Callable[[Evidence, Decision | None], bool] = lambda seen, decision: True


def one(primary, guard=FINE, named="failing", **changes) -> Evidence:
    """One primary and one guard, in percent."""
    states = [named if not isinstance(named, str) else state(C1, named)]
    return evidence([effect(C1, primary), effect(GUARD, guard)], states, **changes)


def exact(primary, guard=FINE, **changes) -> Evidence:
    return one(primary, guard, claims=EXACT, **changes)


def several(effects: dict, states: dict, **changes) -> Evidence:
    shown = [effect(axis, text) for axis, text in effects.items()]
    return evidence(
        [*shown, effect(GUARD, FINE)],
        [state(axis, name) for axis, name in states.items()],
        **changes,
    )


def before(*checks, claims=ParityClass.LOSSLESS, **changes) -> Evidence:
    """Before timing, with these checks of the battery."""
    report = parity(claims, *checks)
    return evidence(claims=claims, parity=report, **changes)


def arm_failure(arm, kind) -> ArmFailure:
    return ArmFailure(arm=arm, kind=kind, stage="measure", message="said so")


def failing(*failures, **changes) -> Evidence:
    return evidence(failures=tuple(arm_failure(arm, kind) for arm, kind in failures), **changes)


def no_speed(seen: Evidence, decision: Decision | None) -> bool:
    return decision is not None and decision.smallest_visible is None and not decision.axes


def memory(percent: float) -> Evidence:
    effects = [effect(C1, (5, 4, 6)), repeating(MEMORY, percent)]
    return evidence(
        effects,
        [state(C1, "failing")],
        axes=(AXES[0], Axis(MEMORY, "bytes", False, deterministic=True)),
        policy=policy(guards=(Guard(MEMORY),)),
    )


def holm_of_two() -> Evidence:
    effects = [with_p(C1, 3, 0.010, 0.0151), with_p(C2, 3, 0.012, 0.0151)]
    guard = effect(GUARD, FINE, p=0.0151)
    return evidence([*effects, guard], [state(C1, "failing"), state(C2, "failing")], last=False)


def partly_inert() -> Evidence:
    effects = {C1: (5, 4, 6), C2: (2, 1, 3), C4: (-4, -6, -2), C8: (0, -9, 9)}
    states = dict.fromkeys(effects, "failing")
    return several(effects, states, witnesses=witnesses((C1, C2), equal=(C4, C8)))


def with_loss(pairs: int, losses: int, arm="cand", cause="foreign process", **changes) -> Evidence:
    return replace(one(WIN, **changes), pairs=pairs, lost=lost(losses, arm, cause))


def clocked() -> Evidence:
    slow = {"clock_mhz": 1900.0, "power_cap": True}
    samples = [
        drawn
        for pair in range(6)
        for drawn in (
            sample(pair, "ref", {C1: 100.0}, telemetry={"clock_mhz": 1960.0}),
            sample(pair, "cand", {C1: 105.0}, telemetry=slow),
        )
    ]
    return replace(one(WIN), samples=tuple(samples))


def swapped() -> Evidence:
    return one((-110, -115, -105), (0, -0.4, 0.4))


ROWS: dict[str, Row] = {
    "1": Row(lambda: exact((4, 3, 5)), ("default-ON", "byte-exact")),
    "2": Row(lambda: exact((0, -0.4, 0.4)), ("default-ON", "byte-exact")),
    "3": Row(lambda: exact((-0.5, -0.7, -0.3)), ("gated-OFF", "slower"), (C1,)),
    "4": Row(lambda: exact((2, 1, 3), (-2, -2.5, -1.5)), ("gated-OFF", "regression"), (GUARD,)),
    "5": Row(
        lambda: exact((0, -3, 3), (0, -3, 3)),
        ("inconclusive", "guard-undecided"),
        (C1, GUARD, "smallest effect", "further pairs"),
    ),
    "5b": Row(lambda: exact((0, -3, 3)), ("inconclusive", "guard-undecided"), (f"guard {C1}",)),
    "6": Row(
        lambda: before(
            passed("op", strongest=EXACT),
            failed("determinism", 0, 2).model_copy(
                update={"status": "reference-fault", "fault": "not-deterministic"}
            ),
            claims=EXACT,
        ),
        ("invalid", "reference-not-deterministic"),
    ),
    "7": Row(
        lambda: one(
            (3, 2, 4),
            named="passing",
            parity=parity(ParityClass.LOSSLESS, passed("op", strongest=EXACT)),
        ),
        ("gated-OFF", "no-failing-axis-win"),
        check=lambda seen, _: seen.parity_class is ParityClass.LOSSLESS,
    ),
    "7b": Row(
        lambda: several({C1: (17, 15, 19), C8: (-20, -22, -18)}, {C1: "failing", C8: "failing"}),
        ("gated-OFF", "regression"),
        (C8,),
    ),
    "8": Row(
        lambda: one((110, 105, 115), (0, -0.4, 0.4)),
        ("default-ON", "failing-axis-win"),
        (C1, "failing"),
    ),
    "9": Row(
        lambda: one((110, 105, 115), named="wanted"),
        ("default-ON", "failing-axis-win"),
        ("no target set",),
    ),
    "10": Row(
        lambda: one((110, 105, 115), named="ignored", policy=policy(untargeted="ignored")),
        ("gated-OFF", "no-failing-axis-win"),
    ),
    "11": Row(
        lambda: several(
            {C1: (17, 15, 19), C2: (0, -0.4, 0.4), C4: (0, -0.4, 0.4), C8: (0, -0.4, 0.4)},
            {C1: "passing", C2: "failing", C4: "failing", C8: "failing"},
        ),
        ("gated-OFF", "no-failing-axis-win"),
        (C2, C4, C8),
    ),
    "12": Row(
        lambda: several(dict.fromkeys((C1, C2), (0, -0.6, 0.6)), {C1: "passing", C2: "failing"}),
        ("terminal", "not-worth-keeping"),
    ),
    "13": Row(lambda: one((0.2, 0.05, 0.35)), ("terminal", "not-worth-keeping")),
    "14": Row(lambda: one((3, 2, 4), (0, -1.5, 1.5), last=False), NEXT),
    "15": Row(
        lambda: one((3, 2, 4), (0, -1.5, 1.5)), ("inconclusive", "guard-undecided"), (GUARD,)
    ),
    "16": Row(holm_of_two, NEXT),
    "17": Row(lambda: one(WIN, named="undecided"), ("inconclusive", "axis-state-undecided"), (C1,)),
    "18": Row(lambda: exact(WIN, named="undecided"), ("default-ON", "byte-exact")),
    "19": Row(
        lambda: one(
            WIN,
            named=state(C1, "undecided", missing="sdpa could not be started").model_copy(
                update={"ratio": None, "lower": None, "upper": None}
            ),
        ),
        ("inconclusive", "oracle-missing"),
        ("sdpa could not be started",),
    ),
    "20": Row(
        lambda: replace(
            one(WIN),
            oracle_mode="compiled",
            samples=(sample(0, "oracle", {C1: 1.0}, telemetry={"oracle_mode": "eager"}),),
        ),
        ("invalid", "oracle-mode"),
        ("eager", "compiled"),
    ),
    "21": Row(
        lambda: before(failed("op", 90, 114, worst="3.0x the reference's error")),
        ("gated-OFF", "parity-failed"),
        ("op 90/114", "3.0x"),
        no_speed,
    ),
    "22": Row(
        lambda: one(WIN, parity=parity(ParityClass.LOSSLESS, passed("op", worst="0.1x"))),
        ("default-ON", "failing-axis-win"),
        check=lambda seen, _: seen.parity_class is ParityClass.LOSSLESS,
    ),
    "23": Row(
        lambda: before(failed("op", 113, 114, detail="NaN where the reference is finite")),
        ("gated-OFF", "parity-failed"),
        ("NaN",),
    ),
    "24": Row(
        lambda: before(
            failed("op", 113, 114).model_copy(
                update={"status": "reference-fault", "fault": "not-finite"}
            )
        ),
        ("invalid", "reference-not-finite"),
    ),
    "25": Row(
        lambda: before(
            passed("op"), passed("tokens", 0, status="empty", detail="no prompt was decoded")
        ),
        ("invalid", "check-empty"),
        ("tokens",),
    ),
    "26": Row(
        lambda: one(
            (4, 3, 5),
            parity=parity(
                ParityClass.LOSSLESS,
                passed("op"),
                passed(
                    "tokens", 184, detail="183 of 184 equal, one near-tie with a gap of 0.2 nat"
                ),
            ),
        ),
        ("default-ON", "failing-axis-win"),
        ("near-tie", "0.2 nat"),
    ),
    "27": Row(
        lambda: before(passed("op"), failed("tokens", 183, 184, worst="a gap of 1.4 nat")),
        ("gated-OFF", "parity-failed"),
        ("1.4 nat",),
        no_speed,
    ),
    "28": Row(
        lambda: before(passed("op"), failed("tokens", 0, 16, detail="answers end 10 % earlier")),
        ("gated-OFF", "parity-failed"),
        ("10 % earlier",),
        no_speed,
    ),
    "29": Row(
        lambda: before(
            passed("op"),
            passed("tokens", 235),
            failed("stack", 233, 235, detail="together with fused_chain=on, cuda_graph=on"),
        ),
        ("gated-OFF", "parity-failed"),
        ("stack 233/235", "fused_chain=on"),
    ),
    "30": Row(
        lambda: before(passed("op"), witnesses=witnesses((), equal=(C1, C2))),
        ("invalid", "not-engaged"),
        ("num_splits=7",),
    ),
    "31": Row(
        partly_inert,
        ("default-ON", "failing-axis-win"),
        ("inert", C4, C8),
        lambda seen, _: seen.engaged == (C1, C2),
    ),
    "32": Row(
        lambda: before(
            passed("op"),
            witnesses=(
                witnesses()[0],
                witnesses()[1].model_copy(update={"left_changed": ("torch.allow_tf32",)}),
            ),
        ),
        ("invalid", "not-restored"),
        ("torch.allow_tf32",),
    ),
    "33": Row(
        lambda: before(
            passed("op"), failed("rollback", 3, 16).model_copy(update={"status": "lever-defective"})
        ),
        ("invalid", "lever-defective"),
    ),
    "34": Row(lambda: failing(("cand", "out-of-memory")), ("gated-OFF", "out-of-memory")),
    "35": Row(
        lambda: failing(("ref", "out-of-memory")),
        ("invalid", "reference-failed"),
        ("a capability",),
    ),
    "36": Row(lambda: failing(("cand", "hung")), ("gated-OFF", "candidate-hung")),
    "37": Row(lambda: with_loss(7, 3), ("invalid", "pairs-lost"), ("3 of 10",)),
    "38": Row(
        lambda: with_loss(18, 2),
        ("default-ON", "failing-axis-win"),
        ("2 of 20 pairs lost", "foreign process"),
    ),
    "38b": Row(lambda: with_loss(37, 8), ("invalid", "uneven-loss"), ("8 of 45",)),
    "39": Row(lambda: memory(-0.9), ("default-ON", "failing-axis-win")),
    "40": Row(lambda: memory(-1.1), ("gated-OFF", "regression"), (MEMORY,)),
    "41": Row(
        clocked,
        ("default-ON", "failing-axis-win"),
        check=lambda seen, _: seen.lost_pairs == 0,
    ),
    "42": Row(
        lambda: with_loss(40, 1, cause="thermal slowdown"),
        ("default-ON", "failing-axis-win"),
        ("1 of 41 pairs lost", "thermal slowdown"),
    ),
    "43": Row(
        lambda: evidence(pairs=2, budget_spent=True),
        ("inconclusive", "budget-spent"),
        ("2 valid pairs of the 6", "4 further pairs"),
        lambda _, decision: decision.pairs_needed == 4 and decision.minutes_needed == 0.4,
    ),
    "44": Row(swapped, ("gated-OFF", "regression")),
}

NUMBERS = [str(n) for n in range(1, 45)] + ["5b", "7b", "38b"]


@pytest.mark.parametrize("number", ROWS)
def test_row(number: str) -> None:
    row = ROWS[number]
    seen = row.build()
    decision = decide(seen)
    outcome = NEXT if decision is None else (decision.outcome.value, decision.reason)
    text = (
        ""
        if decision is None
        else " ".join((decision.detail, *decision.undecided, *decision.notes, *decision.axes))
    )
    assert outcome == row.outcome, text
    assert [words for words in row.says if words not in text] == [], text
    assert row.check(seen, decision)


def test_every_row_of_the_design_is_here_once() -> None:
    assert sorted(ROWS) == sorted(NUMBERS)
    assert len(ROWS) == 47


def test_a_next_look_becomes_inconclusive_once_the_budget_is_spent() -> None:
    for number in ("14", "16"):
        decision = decide(replace(ROWS[number].build(), budget_spent=True))
        assert decision is not None
        assert (decision.outcome.value, decision.reason) == ("inconclusive", "budget-spent")
        assert decision.pairs_needed is not None
        assert decision.undecided


def test_verdicts_from_effects_carry_the_smallest_visible_effect() -> None:
    for number, row in ROWS.items():
        seen = row.build()
        decision = decide(seen)
        if decision is not None and seen.look is not None and decision.outcome.value != "invalid":
            assert decision.smallest_visible is not None, number


def test_the_looks_of_these_rows_are_the_default_ones() -> None:
    assert evidence().looks == LOOKS


@pytest.mark.parametrize("arm", ["ref", "cand"])
def test_a_levers_own_fault_is_no_arms_in_whichever_process_it_shows(arm: str) -> None:
    decision = decide_before_timing(failing((arm, "lever-defective")))
    assert decision is not None
    assert (decision.outcome, decision.reason) == ("invalid", "lever-defective")
    assert decision.detail.startswith("the lever at ")


@pytest.mark.parametrize("arm", ["ref", "cand", "oracle"])
def test_a_process_that_read_other_weights_ends_the_run_whichever_it_was(arm: str) -> None:
    for failures in (((arm, "inputs-changed"),), (("cand", "crashed"), (arm, "inputs-changed"))):
        seen = failing(*failures)
        decision = decide_before_timing(seen)
        assert decision is not None
        assert (decision.outcome, decision.reason) == ("invalid", "inputs-differ")
        assert decision.detail.startswith(f"{arm} at ")
        assert no_speed(seen, decision)
