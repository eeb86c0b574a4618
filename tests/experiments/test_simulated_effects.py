from __future__ import annotations

import numpy as np
import pytest

from experiments import simulated_noise as noise
from experiments.plan import BLOCK_PAIRS, make_plan
from experiments.sequential import Method
from experiments.simulated_effects import effects_of_runs
from experiments.spec import DEFAULT_LOOKS
from experiments.stats import effect_of

RUNS, PAIRS = 60, DEFAULT_LOOKS[-1]
SHORT_LOOKS = (6, 9, 13, 20)
METHODS: tuple[Method, ...] = ("group-sequential", "anytime")


def drawn(name: str, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """d_RnA and orders_Rn; of four axes one repeats exactly and one is correlated."""
    rng = np.random.default_rng(seed)
    orders = noise.orders(rng, RUNS, PAIRS)
    d = noise.log_ratios(noise.MODELS[name](rng, RUNS, PAIRS, 4, 0.01), orders)
    d[..., 2] = 0.003 + rng.uniform(0, 4e-5, (RUNS, PAIRS))
    d[..., 3] = noise.correlated_d(rng, RUNS, PAIRS, 1, 0.01, 0.7)[..., 0]
    return d, orders


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("looks", [DEFAULT_LOOKS, SHORT_LOOKS])
@pytest.mark.parametrize("name", ["gauss", "heavy tails (t, 3 df)", "throttling episodes"])
def test_the_effects_of_many_runs_equal_those_of_each_run(
    name: str, looks: tuple[int, ...], method: Method
) -> None:
    d, orders = drawn(name)
    axes = ("a", "b", "c", "d")
    seen_units = set()
    for index, look in enumerate(looks):
        many = effects_of_runs(d, orders, axes, looks, index, method)
        for run in range(RUNS):
            expected = [
                effect_of(axis, d[run, :look, a], orders[run, :look], looks, index, method)
                for a, axis in enumerate(axes)
            ]
            found = many.of_run(run)
            for mine, theirs in zip(found, expected, strict=True):
                assert theirs is not None
                seen_units.add((theirs.kind, theirs.unit_pairs))
                exact, close = mine.model_dump(), theirs.model_dump()
                for field, value in close.items():
                    if isinstance(value, float):
                        assert exact[field] == pytest.approx(value, rel=1e-9, abs=1e-12), field
                    else:
                        assert exact[field] == value, field
    interval = "t" if method == "group-sequential" else "sequence"
    assert seen_units == {(interval, 1), (interval, 2), ("deterministic", 1)}


def test_an_order_that_never_changes_gives_no_effect_here_as_there() -> None:
    d = np.random.default_rng(0).normal(0, 0.01, (2, 9, 1))
    orders = np.ones((2, 9))
    orders[1, ::2] = -1
    many = effects_of_runs(d, orders, ("a",), (9,), 0)
    assert effect_of("a", d[0, :, 0], orders[0], (9,), 0) is None
    assert many.of_run(0) == ()
    assert not many.trusted[0, 0]
    assert len(many.of_run(1)) == 1


def test_simulated_orders_are_permuted_blocks_as_the_plan_draws_them() -> None:
    rng = np.random.default_rng(1)
    drawn = noise.orders(rng, 6000, BLOCK_PAIRS)
    assert (drawn.sum(axis=1) == 0).all()
    planned = [
        tuple(make_plan(seed, BLOCK_PAIRS).order(pair) for pair in range(BLOCK_PAIRS))
        for seed in range(6000)
    ]
    simulated = [tuple(int(o) for o in row) for row in drawn]
    kinds = sorted(set(planned))
    assert len(kinds) == 6
    assert sorted(set(simulated)) == kinds
    for kind in kinds:
        for found in (planned, simulated):
            assert found.count(kind) / 6000 == pytest.approx(1 / 6, abs=0.025)
