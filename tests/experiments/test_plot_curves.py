from __future__ import annotations

import math

import numpy as np
import pytest
from support import records_factory as factory

from experiments import plot_curves, plots
from experiments.parity_records import CheckResult
from experiments.requests import Standing
from levers.policy import ParityClass

STEPS = 200


def loss_check(offset: float = 0.0, *, own: int = 3, steps: int = STEPS) -> CheckResult:
    """A falling loss; the reference differs from itself by 1e-4 at most, the candidate by more."""
    t = np.arange(steps)
    base = 1.2 * np.exp(-t / 60) + 0.4 + 0.02 * np.sin(t)
    curves = {"reference": base, "candidate": base + 5e-5 * np.sin(t / 7) + offset}
    for k in range(1, own + 1):
        kind = "repeat" if k % 2 else "reordered"
        curves[f"reference {kind} {k}"] = base + 1e-4 * np.cos(t / (5 * k)) * (-1) ** k
    return CheckResult(
        name="loss",
        status="passed",
        passed=steps,
        total=steps,
        strongest=ParityClass.LOSSLESS,
        curves={name: tuple(map(float, values)) for name, values in curves.items()},
    )


def with_check(check: CheckResult):
    record = factory.default_on()
    assert record.parity is not None
    others = tuple(one for one in record.parity.checks if one.name != check.name)
    parity = record.parity.model_copy(update={"checks": (*others, check)})
    return record.model_copy(update={"parity": parity})


def test_the_curves_of_a_check_are_drawn_once_as_svg_and_png() -> None:
    drawn = {plot.name: plot for plot in plots.plots(with_check(loss_check()))}
    assert "curves_loss" in drawn
    assert "200 steps" in drawn["curves_loss"].caption
    assert drawn["curves_loss"].png.startswith(b"\x89PNG")
    assert "plots/curves_loss.png" in plots.files(tuple(drawn.values()))


def test_the_page_of_the_run_holds_the_curves() -> None:
    from experiments import reports

    page = reports.page(with_check(loss_check()), Standing())
    assert "loss, step by step" in page
    assert "own repeats and reorderings" in page


def test_a_candidate_outside_the_band_is_counted_step_by_step() -> None:
    inside, outside = plot_curves.curves_of(loss_check()), plot_curves.curves_of(loss_check(1e-3))
    assert inside is not None
    assert outside is not None
    assert inside.outside is not None
    assert inside.outside < STEPS / 4
    assert outside.outside == STEPS
    assert "at 200 steps" in outside.caption


def test_the_arm_that_truth_lies_on_is_told() -> None:
    check = loss_check(1e-1)
    truth = tuple(value + 1e-3 for value in check.curves["candidate"])
    curves = plot_curves.curves_of(
        check.model_copy(update={"curves": {**check.curves, "truth": truth}})
    )
    assert curves is not None
    assert curves.has_truth
    assert curves.caption.endswith("furthest from fp64 truth: reference 0.1, candidate 0.001")
    without = plot_curves.curves_of(check)
    assert without is not None
    assert "truth" not in without.caption


def test_a_candidate_that_is_not_finite_is_outside_and_still_drawn() -> None:
    check = loss_check()
    broken = (*check.curves["candidate"][:100], *([math.nan] * 100))
    check = check.model_copy(update={"curves": {**check.curves, "candidate": broken}})
    curves = plot_curves.curves_of(check)
    assert curves is not None
    assert curves.outside is not None
    assert curves.outside >= 100
    assert any(plot.name == "curves_loss" for plot in plots.plots(with_check(check)))


def test_without_repeats_there_is_no_band_and_the_caption_says_so() -> None:
    curves = plot_curves.curves_of(loss_check(own=0))
    assert curves is not None
    assert curves.band is None
    assert curves.outside is None
    assert "no band" in curves.caption


def test_curves_of_unequal_length_are_compared_over_the_steps_that_all_have() -> None:
    check = loss_check()
    short = check.curves["candidate"][:50]
    curves = plot_curves.curves_of(
        check.model_copy(update={"curves": {**check.curves, "candidate": short}})
    )
    assert curves is not None
    assert len(curves.reference) == 50


@pytest.mark.parametrize("curves", [{}, {"reference": (1.0,)}, {"reference": (), "candidate": ()}])
def test_a_check_without_both_arms_has_no_figure(curves: dict[str, tuple[float, ...]]) -> None:
    check = loss_check().model_copy(update={"curves": curves})
    assert plot_curves.curves_of(check) is None


def test_equal_arms_give_a_flat_line_and_an_axis() -> None:
    check = loss_check(own=1)
    same = dict.fromkeys(check.curves, check.curves["reference"])
    drawn = plots.plots(with_check(check.model_copy(update={"curves": same})))
    assert any("at 0 steps" in plot.caption for plot in drawn)


def test_a_run_that_failed_its_loss_check_shows_the_curves_and_no_speed() -> None:
    record = factory.ALL["parity_failed"]()
    assert record.parity is not None
    check = loss_check(1.0).model_copy(
        update={"status": "failed", "passed": 0, "strongest": ParityClass.BROKEN}
    )
    parity = record.parity.model_copy(update={"checks": (check,)})
    drawn = plots.plots(record.model_copy(update={"parity": parity}))
    assert [plot.name for plot in drawn] == ["curves_loss"]
