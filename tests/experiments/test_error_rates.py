"""How often the real stopping loop says what is not so: every bound is tested by simulation.

Each count is held against its bound by an exact binomial test: the bound is refuted where so many
errors would come up less than once in a thousand times if it held.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from experiments import simulated_noise as noise
from experiments.decide.order import decide_effects
from experiments.sequential import Method
from experiments.simulated_effects import effects_of_runs
from experiments.simulated_noise import MODELS, Model
from experiments.simulated_runs import HARM, UNDECIDED, WIN, Ends, Rules, run_all
from experiments.spec import DEFAULT_LOOKS
from levers.policy import Axis, GatingPolicy, Guard, ParityClass

RUNS = 1500
PAIRS = DEFAULT_LOOKS[-1]
REFUTED = 1e-3

ONE = (Axis("rate/c1", "tok/s", True),)
SIX = (
    *(Axis(f"rate/c{c}", "tok/s", True) for c in (1, 2, 4, 8)),
    Axis("wait/p95", "ms", False),
    Axis("gap/p95", "ms", False),
)
OPEN_GUARDS = (Guard("wait/p95", 1.0), Guard("gap/p95", 1.0))


def policy(axes: tuple[Axis, ...], claims: ParityClass, margin: float) -> GatingPolicy:
    """A bar with a tiny gain, so that every interval above zero is a win: the hardest A/A."""
    guards = OPEN_GUARDS if margin >= 1 else (Guard("wait/p95", margin), Guard("gap/p95", margin))
    return GatingPolicy(
        primaries=("rate/*",),
        guards=guards if len(axes) > 1 else (),
        claims=claims,
        smallest_gain=1e-9,
        primary_margin=margin,
    )


def ends(
    model: Model,
    rules: Rules,
    *,
    sd: float = 0.01,
    runs: int = RUNS,
    seed: int = 5,
    effect: float | dict[str, float] = 0.0,
    pairs: int = PAIRS,
) -> Ends:
    rng = np.random.default_rng(seed)
    orders = noise.orders(rng, runs, pairs)
    d = noise.log_ratios(model(rng, runs, pairs, len(rules.axes), sd), orders)
    planted = effect if isinstance(effect, dict) else dict.fromkeys(rules.names, effect)
    d += np.array([planted.get(name, 0.0) for name in rules.names])
    return run_all(rules, d, orders)


def refuted(count: int, bound: float, runs: int = RUNS) -> bool:
    """Whether so many errors in so many runs refute that their rate is at most ``bound``."""
    return float(binom.sf(count - 1, runs, bound)) < REFUTED


def lossless(axes: tuple[Axis, ...] = ONE, margin: float = 1.0, **changes: object) -> Rules:
    return Rules(policy(axes, ParityClass.LOSSLESS, margin), axes, **changes)


def exact(axes: tuple[Axis, ...] = SIX, margin: float = 0.01) -> Rules:
    return Rules(policy(axes, ParityClass.BYTE_EXACT, margin), axes)


@pytest.mark.parametrize("axes", [ONE, SIX], ids=["one axis", "four axes and two guards"])
@pytest.mark.parametrize("name", MODELS)
def test_equal_arms_win_in_at_most_one_run_of_forty(name: str, axes: tuple[Axis, ...]) -> None:
    found = ends(MODELS[name], lossless(axes))
    assert not refuted(found.count(WIN), 0.025)
    assert not refuted(found.count(WIN, *HARM), 0.05)


@pytest.mark.parametrize("sd", [0.005, 0.03])
@pytest.mark.parametrize("name", MODELS)
def test_equal_arms_get_a_false_verdict_in_at_most_one_run_of_twenty(name: str, sd: float) -> None:
    narrow = lossless(SIX, margin=0.01)
    for rules in (narrow, exact()):
        found = ends(MODELS[name], rules, sd=sd, runs=600)
        assert not refuted(found.count(WIN, *HARM), 0.05, 600)


def test_the_bound_on_wins_is_used_and_not_merely_kept() -> None:
    found = ends(noise.gauss, lossless(), runs=6000)
    assert 0.015 < found.rate(WIN) <= 0.03


@pytest.mark.parametrize("name", MODELS)
def test_a_guard_exactly_at_its_margin_ships_in_at_most_one_run_of_forty(name: str) -> None:
    axes = (*ONE, Axis("wait/p95", "ms", False))
    bar = GatingPolicy(primaries=("rate/*",), guards=(Guard("wait/p95", 0.01),))
    truth = {"rate/c1": 0.05, "wait/p95": -0.01}
    found = ends(MODELS[name], Rules(bar, axes), sd=0.005, effect=truth)
    assert not refuted(found.count(WIN), 0.025)
    assert not refuted(found.count("regression"), 0.025)


@pytest.mark.parametrize("name", MODELS)
def test_a_gain_worth_keeping_is_called_none_in_at_most_one_run_of_forty(name: str) -> None:
    bar = GatingPolicy(primaries=("rate/*",))
    found = ends(MODELS[name], Rules(bar, ONE), sd=0.005, effect=bar.smallest_gain)
    assert not refuted(found.count("not-worth-keeping", "no-failing-axis-win"), 0.025)


def test_a_win_on_a_passing_axis_never_ships() -> None:
    rules = lossless(states={"rate/c1": "passing"})
    found = ends(noise.gauss, rules, effect=0.1)
    assert found.count(WIN) == 0
    assert found.rate("no-failing-axis-win") == 1.0


@pytest.mark.parametrize("maximum", [12, 30, 80])
def test_the_bound_holds_for_another_maximum(maximum: int) -> None:
    looks = (*(look for look in DEFAULT_LOOKS if look < maximum), maximum)
    rules = lossless(looks=looks)
    found = ends(noise.gauss, rules, runs=3000, pairs=maximum)
    assert not refuted(found.count(WIN), 0.025, 3000)


@pytest.mark.parametrize("name", ["gauss", "heavy tails (t, 3 df)", "throttling episodes"])
def test_the_anytime_sequence_holds_when_it_is_looked_at_after_every_pair(name: str) -> None:
    looks = tuple(range(6, 61))
    method: Method = "anytime"
    found = ends(MODELS[name], lossless(looks=looks, method=method), runs=1500, pairs=60)
    assert not refuted(found.count(WIN, *HARM), 0.05, 1500)


def test_a_peek_after_every_pair_at_the_level_of_one_test_is_caught() -> None:
    """What these bounds are worth: the habit that they forbid fails them by far."""
    rng = np.random.default_rng(7)
    orders = noise.orders(rng, RUNS, PAIRS)
    d = noise.log_ratios(noise.gauss(rng, RUNS, PAIRS, 1, 0.01), orders)
    crossed = np.zeros(RUNS, dtype=bool)
    for n in range(6, PAIRS + 1):
        alone = effects_of_runs(d, orders, ("rate/c1",), (n,), 0)
        crossed |= alone.lower[:, 0] > 0
    assert refuted(int(crossed.sum()), 0.025)


# --- where it stops holding -----------------------------------------------------------------


def correlated(lag_one: float, runs: int = 3000) -> Ends:
    rng = np.random.default_rng(11)
    d = noise.correlated_d(rng, runs, PAIRS, 1, 0.01, lag_one)
    return run_all(lossless(), d, noise.orders(rng, runs, PAIRS))


def test_pairs_that_are_correlated_in_d_break_the_bound_as_documented() -> None:
    """Carry-over within an arm is not cured by random order; the gate only lowers the harm."""
    rates = {lag: correlated(lag).rate(WIN) for lag in (0.0, 0.1, 0.3, 0.6)}
    assert not refuted(round(rates[0.0] * 3000), 0.025, 3000)
    assert rates[0.1] < 0.06
    assert 0.06 < rates[0.3] < 0.11
    assert rates[0.6] > rates[0.3]


def test_a_state_that_one_arm_keeps_for_the_whole_run_passes_for_an_effect() -> None:
    """No statistic can tell it from an effect; fresh processes and blocks must prevent it."""
    rng = np.random.default_rng(13)
    orders = noise.orders(rng, 500, PAIRS)
    d = noise.log_ratios(noise.gauss(rng, 500, PAIRS, 1, 0.01), orders)
    d += rng.normal(0, 0.01, (500, 1, 1))
    assert run_all(lossless(), d, orders).rate(WIN) > 0.25


def test_the_reference_always_first_is_what_random_order_prevents() -> None:
    rng = np.random.default_rng(17)
    x = noise.position(rng, RUNS, PAIRS, 1, 0.01)
    first = np.ones((RUNS, PAIRS))
    fixed = noise.log_ratios(x, first)
    plain = (fixed.mean(axis=1) / (fixed.std(axis=1, ddof=1) / PAIRS**0.5))[:, 0]
    assert (np.abs(plain) > 2.02).mean() > 0.5, "a paired t test in one order"
    assert run_all(lossless(), fixed, first).count(UNDECIDED) == RUNS, "ours gives no effect at all"


# --- the shortcut of the simulation is none --------------------------------------------------


@pytest.mark.parametrize(
    "rules",
    [lossless(SIX, 0.01), lossless(SIX, 1.0), exact(), lossless(ONE, 1.0, method="anytime")],
    ids=["narrow", "open", "byte-exact", "anytime"],
)
def test_a_look_that_was_not_handed_to_the_rules_would_have_gone_on(
    rules: Rules,
) -> None:
    rng = np.random.default_rng(19)
    orders = noise.orders(rng, 120, PAIRS)
    d = noise.log_ratios(noise.heavy(rng, 120, PAIRS, len(rules.axes), 0.01), orders)
    d += rng.choice([-0.012, 0.0, 0.012], (120, 1, 1))
    fired = 0
    for index in range(len(rules.looks)):
        effects = effects_of_runs(d, orders, rules.names, rules.looks, index, rules.method)
        may = rules.may_decide(effects)
        for run in range(120):
            decision = decide_effects(rules.look_at(index, effects, run))
            assert decision is None or may[run]
            fired += decision is not None
    assert fired > 0
