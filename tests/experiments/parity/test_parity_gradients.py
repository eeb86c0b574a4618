"""Gradients of a lever of the tolerated class: its own stated tolerance, and nobody else's."""

from __future__ import annotations

import math

import pytest

from experiments.parity import loss
from experiments.parity.bench import Bench
from experiments.parity.limits import Limits
from experiments.spec import AbSpec
from experiments.tasks import Outputs, Task
from levers.policy import ParityClass, Tolerance
from tests.support.fake_arms import (
    PLAIN,
    FakeArms,
    FakeLever,
    FakeWorkload,
    Plant,
    gradient,
    spec,
)


def bench(plant: Plant, asked: AbSpec) -> Bench:
    arms = FakeArms(plant)
    return Bench(asked, FakeLever(), FakeWorkload(), arms, "cpu", Limits(reorderings=1))


def changed(**changes: object) -> Outputs:
    return PLAIN.model_copy(update=changes)


EIGHT_BIT = Tolerance(0.08, "planted", gradient_error=0.1)
"""As of a lever with 8-bit products."""


def eight_bit(worst: float, *, row: float | None = None) -> Plant:
    """A reference as bf16 leaves it, and a candidate with one gradient further off."""

    def plant(task: Task) -> Outputs:
        error = worst if task.arm == "cand" else 0.004
        return changed(gradients=(gradient("w", error, row), gradient("b", 0.004)))

    return plant


def test_a_tolerated_levers_gradient_inside_its_tolerance_passes_and_is_called_tolerated() -> None:
    asked = spec(claims=ParityClass.TOLERATED, tolerance=EIGHT_BIT)
    found = loss.check(bench(eight_bit(0.089), asked))
    assert (found.status, found.strongest) == ("passed", ParityClass.TOLERATED)
    said = "inside the stated tolerance 0.1: 1 gradients, the largest 0.089 at w"
    assert said in found.detail
    assert found.worst.startswith("gradient error 0.089")


@pytest.mark.parametrize("error", [0.101, math.nan, math.inf])
def test_a_tolerated_levers_gradient_above_its_tolerance_fails(error: float) -> None:
    asked = spec(claims=ParityClass.TOLERATED, tolerance=EIGHT_BIT)
    found = loss.check(bench(eight_bit(error), asked))
    assert (found.status, found.where) == ("failed", "w")


def test_a_tolerance_of_the_operation_alone_loosens_no_gradient() -> None:
    asked = spec(claims=ParityClass.TOLERATED, tolerance=Tolerance(0.1, "planted"))
    assert loss.check(bench(eight_bit(0.089), asked)).status == "failed"


@pytest.mark.parametrize("claims", [ParityClass.LOSSLESS, ParityClass.BYTE_EXACT])
def test_a_stronger_claim_profits_from_no_tolerance(claims: ParityClass) -> None:
    asked = spec(claims=claims, tolerance=EIGHT_BIT)
    assert loss.check(bench(eight_bit(0.089), asked)).status == "failed"


def test_a_tolerated_lever_whose_gradients_are_lossless_is_not_called_less() -> None:
    asked = spec(claims=ParityClass.TOLERATED, tolerance=EIGHT_BIT)
    found = loss.check(bench(eight_bit(0.0041), asked))
    assert (found.status, found.strongest) == ("passed", ParityClass.LOSSLESS)


def test_a_tolerance_of_gradients_does_not_excuse_a_curve() -> None:
    def plant(task: Task) -> Outputs:
        losses = (2.0, 1.5, 1.25, 1.2) if task.arm == "cand" else PLAIN.losses
        return changed(losses=losses, gradients=(gradient("w", 0.004), gradient("b", 0.004)))

    asked = spec(claims=ParityClass.TOLERATED, tolerance=EIGHT_BIT)
    assert loss.check(bench(plant, asked)).status == "failed"


def test_a_gradient_cleared_by_fresh_seeds_may_be_tolerated_on_them() -> None:
    def plant(task: Task) -> Outputs:
        first = 0.12 if task.seed == 5 else 0.09
        error = first if task.arm == "cand" else 0.004
        return changed(gradients=(gradient("w", error), gradient("b", 0.004)))

    asked = spec(claims=ParityClass.TOLERATED, tolerance=EIGHT_BIT)
    found = loss.check(bench(plant, asked))
    assert (found.status, found.strongest) == ("passed", ParityClass.TOLERATED)
    assert "1 parameters above their bounds were decided on 3 fresh seeds; " in found.detail
    assert "1 gradients, the largest 0.09 at w" in found.detail
