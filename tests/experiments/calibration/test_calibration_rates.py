from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from experiments.calibration.policies import NO_LEVER_YET, policies_of
from experiments.calibration.rates import (
    Draws,
    Noise,
    axis_noise,
    binomial_interval,
    draw,
    noise_of,
    policy_rates,
    redrawn,
)
from experiments.calibration.run import Uncalibrated, evaluate
from experiments.environment import cpu_device
from experiments.plan import make_plan
from experiments.power import smallest_seen
from experiments.records import ArmFailure, LostPair
from experiments.simulated_runs import Rules
from experiments.spec import DEFAULT_LOOKS
from experiments.stats import effect_of, half_width
from levers.policy import Axis, GatingPolicy
from tests.support import calibration_factory as factory
from tests.support import runs
from tests.support.stub_workload import RATE, STEP, STUB

AXIS = Axis("rate", "tok/s", True)
SOME = Draws(runs=400, calibrations=20, runs_each=100)
HARDEST = GatingPolicy(primaries=("rate",), smallest_gain=1e-9, primary_margin=1.0)


@pytest.fixture(autouse=True)
def _stub(monkeypatch: pytest.MonkeyPatch) -> None:
    runs.use_stub(monkeypatch)


def gaussian(pairs: int, sd: float = 0.02, axes: int = 1, seed: int = 4) -> Noise:
    names = tuple("rate" if a == 0 else f"other{a}" for a in range(axes))
    return Noise(names, np.random.default_rng(seed).normal(0, sd, (pairs, axes)))


def test_resampled_runs_are_whole_measured_blocks() -> None:
    noise = Noise(("rate",), np.arange(14.0)[:, None])
    drawn = draw(np.random.default_rng(0), noise.blocks, 50, 10)
    assert drawn.shape == (50, 10, 1)
    firsts = {0.0, 4.0, 8.0}
    for run in drawn[..., 0]:
        for start in (0, 4, 8):
            block = run[start : start + 4]
            assert block[0] in firsts
            assert (np.diff(block) == 1).all()
    assert {float(run[0]) for run in drawn[..., 0]} == firsts


def test_which_process_is_the_reference_is_drawn_anew_so_that_no_effect_is_left() -> None:
    """Slow second processes and an unlucky mean of the measured pairs both cancel."""
    lopsided = Noise(("rate",), np.full((40, 1), -0.03) + gaussian(40).differences)
    rng = np.random.default_rng(1)
    d, orders = redrawn(rng, draw(rng, lopsided.blocks, 3000, 40))
    assert (orders.sum(axis=1) == 0).all()
    effects = [effect_of("rate", d[i, :, 0], orders[i], (40,), 0) for i in range(300)]
    mean = np.mean([effect.estimate for effect in effects if effect is not None])
    assert abs(mean) < 4 * 0.02 / math.sqrt(40) / math.sqrt(300)


def test_the_rate_is_that_of_the_stopping_loop_and_its_interval_covers_it() -> None:
    """Gaussian noise has about 5.2 % false verdicts at the hardest bar, half of them wins."""
    bar = GatingPolicy(primaries=("rate",), smallest_gain=1e-9, primary_margin=1e-9)
    found = policy_rates(("lever",), Rules(bar, (AXIS,)), gaussian(80), seed=3)
    assert found.false.lower <= 0.052 <= found.false.upper
    assert 0.02 < found.false.rate < 0.09
    assert found.wins.rate <= found.false.rate
    assert sum(found.ends.values()) == pytest.approx(1.0)
    assert 6 <= found.mean_pairs <= 40


def test_the_interval_knows_that_other_pairs_might_have_been_measured() -> None:
    """One wild block of three: whether a resampled calibration holds it changes the rate."""
    calm, wild = gaussian(8, sd=0.001), gaussian(4, sd=0.2)
    noise = Noise(("rate",), np.concatenate([calm.differences, wild.differences]))
    bar = GatingPolicy(primaries=("rate",), smallest_gain=1e-9, primary_margin=1e-3)
    found = policy_rates(("lever",), Rules(bar, (AXIS,)), noise, 2, SOME).false
    low, high = binomial_interval(round(found.rate * SOME.runs), SOME.runs)
    assert found.lower <= low
    assert found.upper > high
    assert found.lower <= found.rate <= found.upper


@pytest.mark.parametrize(("count", "n"), [(0, 40), (1, 40), (13, 40), (40, 40)])
def test_the_exact_interval_of_a_share(count: int, n: int) -> None:
    expected = binomtest(count, n).proportion_ci(0.95, "exact")
    assert binomial_interval(count, n) == pytest.approx((expected.low, expected.high))


def test_the_noise_of_an_axis_is_what_a_run_would_print() -> None:
    noise = gaussian(40, sd=0.01)
    [found] = axis_noise(noise, DEFAULT_LOOKS)
    assert found.sd == pytest.approx(noise.differences.std(ddof=1))
    orders = np.array([make_plan(2, 40).order(pair) for pair in range(40)], dtype=np.float64)
    d = orders * noise.differences[:, 0]
    shown = effect_of("rate", d, orders, DEFAULT_LOOKS, 5)
    assert shown is not None
    assert found.visible[-1] == pytest.approx(half_width(shown), rel=0.05)
    assert list(found.visible) == sorted(found.visible, reverse=True)
    assert found.seen_at_80 == pytest.approx(smallest_seen(DEFAULT_LOOKS, found.sd))
    assert found.seen_at_80 > found.visible[-1]


def test_an_axis_that_repeats_exactly_has_no_noise_and_no_false_verdicts() -> None:
    noise = Noise(("rate",), np.zeros((16, 1)))
    [found] = axis_noise(noise, DEFAULT_LOOKS)
    assert (found.sd, found.seen_at_80, found.lag_one) == (0.0, 0.0, 0.0)
    rates = policy_rates(("lever",), Rules(HARDEST, (AXIS,)), noise, 1, factory.FEW)
    assert rates.false.rate == 0.0
    assert rates.false.upper == pytest.approx(1 - 0.025 ** (1 / factory.FEW.runs))


# --- from a record ---------------------------------------------------------------------------


def test_a_record_of_equal_arms_gives_noise_position_and_rates() -> None:
    found = factory.calibration(40, sd=0.02, position=0.01)
    assert found.pairs == 40
    assert set(found.slowness) == {RATE, STEP}
    rate = next(one for one in found.noise if one.axis == RATE)
    assert rate.sd == pytest.approx(0.02, rel=0.4)
    assert rate.position == pytest.approx(0.01, abs=0.01)
    assert found.seconds_per_pair == 4.0
    assert "planted_fast" in found.rates[0].levers


def test_slowness_is_in_time_order_and_higher_where_a_figure_is_worse() -> None:
    record = factory.record(12)
    found = evaluate(record, cpu_device(), factory.FEW)
    first = {s.pair: s.values for s in record.samples if s.position == 0}
    for pair, (one, _) in enumerate(found.slowness[RATE]):
        assert one == pytest.approx(-math.log(first[pair][RATE]))
        assert found.slowness[STEP][pair][0] == pytest.approx(math.log(first[pair][STEP]))
    differences = noise_of(found.slowness).differences
    assert differences[:, 0] == pytest.approx(differences[:, 1])


def test_lost_pairs_are_left_out_and_said() -> None:
    lost = (LostPair(pair=3, arm="ref", cause="foreign process"),)
    found = factory.calibration(16, lost=lost)
    assert (found.pairs, found.lost) == (15, 1)
    assert found.warnings == ("15 of 16 planned pairs",)


def test_samples_that_compiled_or_saw_other_inputs_are_said() -> None:
    drawn = list(factory.samples(12))
    drawn[0] = drawn[0].model_copy(update={"compilations": 1})
    drawn[1] = drawn[1].model_copy(update={"inputs_digest": "other"})
    found = factory.calibration(12, samples=tuple(drawn))
    assert any("different inputs" in text for text in found.warnings)
    assert any("1 samples compiled" in text for text in found.warnings)


def test_too_few_pairs_calibrate_nothing_and_the_cause_is_named() -> None:
    failure = ArmFailure(arm="ref", kind="out-of-memory", stage="measure", message="no room")
    with pytest.raises(Uncalibrated, match=r"8 valid pairs.*out-of-memory.*no room"):
        factory.calibration(8, failures=(failure,))
    with pytest.raises(Uncalibrated, match="budget was spent"):
        factory.calibration(8)


def test_a_workload_without_levers_is_held_to_the_usual_bar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LEVERGATE_LEVERS", "")
    [(names, policy)] = policies_of(STUB, factory.PARAMETERS, cpu_device().facts)
    assert names == (NO_LEVER_YET,)
    assert policy.is_primary(RATE)


def test_levers_of_one_policy_share_their_rates() -> None:
    found = policies_of(STUB, factory.PARAMETERS, cpu_device().facts)
    names = [name for names, _ in found for name in names]
    assert len(names) == len(set(names))
    assert len(found) < len(names)
