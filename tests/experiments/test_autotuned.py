from __future__ import annotations

from typing import Any

from experiments.autotuned import changing_winners, winners
from experiments.decide.order import decide
from experiments.records import Outcome
from tests.support.evidence_factory import (
    C1,
    EXACT,
    GUARD,
    Evidence,
    effect,
    evidence,
    sample,
    state,
    witness,
)

KERNEL = "autotune.gemm[(64, 64)]"


def chose(arm: Any, *configurations: str) -> list[Any]:
    return [
        sample(pair, arm, {C1: 100.0}, telemetry={KERNEL: one, "sm_mhz": 1965.0})
        for pair, one in enumerate(configurations)
    ]


def test_winners_are_read_from_the_facts_of_a_process() -> None:
    assert winners({KERNEL: "BLOCK 64", "sm_mhz": 1.0}) == {"gemm[(64, 64)]": "BLOCK 64"}


def test_arms_may_choose_apart_but_each_must_agree_with_itself() -> None:
    steady = [*chose("ref", "BLOCK 64", "BLOCK 64"), *chose("cand", "BLOCK 128", "BLOCK 128")]
    assert changing_winners((), steady) == ()
    found = changing_winners((), [*steady, *chose("oracle", "a", "b")])
    assert found == ()
    unsteady = changing_winners((), [*steady, *chose("cand", "BLOCK 32")])
    assert unsteady == ("cand gemm[(64, 64)]: BLOCK 128 | BLOCK 32",)


def test_the_witness_pass_counts_as_a_process_of_its_arm() -> None:
    seen = witness("cand", {C1: "plan"}, facts={KERNEL: "BLOCK 32"})
    assert changing_winners((seen,), chose("cand", "BLOCK 64"))


def exact(*samples: Any) -> Evidence:
    return evidence(
        [effect(C1, (0, -0.4, 0.4)), effect(GUARD, (0, -0.5, 0.5))],
        [state(C1, "failing")],
        claims=EXACT,
        samples=tuple(samples),
    )


# https://github.com/syv-ai/qwen38-27b-rtx3090/issues/75
def test_a_byte_exact_lever_whose_winners_change_does_not_ship_on_exactness_alone() -> None:
    pinned = decide(exact(*chose("cand", "BLOCK 64", "BLOCK 64")))
    assert pinned is not None
    assert (pinned.outcome, pinned.reason) == (Outcome.DEFAULT_ON, "byte-exact")
    loose = decide(exact(*chose("cand", "BLOCK 64", "BLOCK 32")))
    assert loose is not None
    assert loose.outcome is not Outcome.DEFAULT_ON
    assert any("needs pinned autotune: cand gemm" in note for note in loose.notes)
