from __future__ import annotations

import pytest

from levers.policy import MAX_GUARDS, Axis, GatingPolicy, Guard, ParityClass, Tolerance

EXACT, LOSSLESS = ParityClass.BYTE_EXACT, ParityClass.LOSSLESS
TOLERATED, BROKEN = ParityClass.TOLERATED, ParityClass.BROKEN
RATE = ("decode/tok_s/c*",)


def test_classes_run_from_byte_exact_to_broken() -> None:
    assert [one.rank for one in (EXACT, LOSSLESS, TOLERATED, BROKEN)] == [0, 1, 2, 3]


def test_a_run_is_the_weaker_of_claim_and_measurement() -> None:
    assert EXACT.weaker(LOSSLESS) is LOSSLESS
    assert LOSSLESS.weaker(EXACT) is LOSSLESS
    assert TOLERATED.weaker(BROKEN) is BROKEN


def test_a_stronger_class_satisfies_a_weaker_demand() -> None:
    assert EXACT.satisfies(LOSSLESS)
    assert LOSSLESS.satisfies(LOSSLESS)
    assert not TOLERATED.satisfies(LOSSLESS)


def test_the_sign_of_an_axis_makes_better_positive() -> None:
    assert (Axis("a", "tok/s", True).sign, Axis("b", "ms", False).sign) == (1, -1)


def test_what_is_claimed_is_what_is_demanded_unless_the_policy_says_otherwise() -> None:
    assert GatingPolicy(primaries=RATE, claims=EXACT).demanded is EXACT
    assert GatingPolicy(primaries=RATE, claims=EXACT, demands=LOSSLESS).demanded is LOSSLESS


def test_a_named_guard_comes_before_the_margin_of_a_primary() -> None:
    policy = GatingPolicy(
        primaries=RATE,
        guards=(Guard("decode/tok_s/c8", 0.03), Guard("memory/*")),
        primary_margin=0.02,
    )
    assert policy.guard_for("decode/tok_s/c8") == Guard("decode/tok_s/c8", 0.03)
    assert policy.guard_for("decode/tok_s/c1") == Guard("decode/tok_s/c1", 0.02)
    assert policy.guard_for("memory/peak_bytes") == Guard("memory/*")
    assert policy.guard_for("train/tok_s") is None


def test_patterns_tell_upper_from_lower_case() -> None:
    assert GatingPolicy(primaries=RATE).is_primary("decode/tok_s/c1")
    assert not GatingPolicy(primaries=RATE).is_primary("decode/TOK_S/c1")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"primaries": ()}, "at least one primary"),
        ({"guards": tuple(Guard(f"x{i}") for i in range(MAX_GUARDS + 1))}, "at most 6"),
        ({"claims": BROKEN}, "cannot claim to be broken"),
        ({"claims": TOLERATED}, "declares its tolerance"),
    ],
)
def test_a_policy_that_cannot_gate_cannot_be_built(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GatingPolicy(**{"primaries": RATE, **changes})


def test_a_tolerated_lever_with_its_tolerance_builds() -> None:
    policy = GatingPolicy(primaries=RATE, claims=TOLERATED, tolerance=Tolerance(0.02, "fp8 sums"))
    assert policy.demanded is TOLERATED
