from __future__ import annotations

import pytest

from experiments.plan import BLOCK_PAIRS, Plan, Step, make_plan, remaining
from experiments.records import LostPair, Sample
from tests.support.evidence_factory import sample


def run(step: Step) -> list[Sample]:
    return [sample(one.pair, one.arm, {"a": 1.0}, position=one.position) for one in step.runs]


def done(plan: Plan, steps: int) -> list[Sample]:
    return [one for step in plan.steps[:steps] for one in run(step)]


def lost(pair: int, arm: str = "cand") -> LostPair:
    return LostPair(pair=pair, arm=arm, cause="foreign process")


@pytest.mark.parametrize("seed", range(20))
def test_each_block_balances_the_order(seed: int) -> None:
    plan = make_plan(seed, 40)
    for block in range(10):
        orders = [
            plan.order(pair) for pair in range(block * BLOCK_PAIRS, (block + 1) * BLOCK_PAIRS)
        ]
        assert sorted(orders) == [-1, -1, 1, 1]


def test_all_arrangements_of_a_block_are_drawn() -> None:
    plan = make_plan(3, 40)
    drawn = {tuple(plan.order(4 * block + i) for i in range(4)) for block in range(400)}
    assert len(drawn) == 6


def test_the_order_is_the_same_in_every_version() -> None:
    assert [make_plan(7, 12).order(pair) for pair in range(12)] == [
        1, -1, 1, -1, 1, -1, 1, -1, -1, 1, -1, 1,
    ]  # fmt: skip


def test_the_reference_runs_first_where_the_order_is_plus_one() -> None:
    plan = make_plan(7, 8)
    for step in plan.steps:
        arms = [one.arm for one in step.runs]
        assert arms == (["ref", "cand"] if plan.order(step.pair) == 1 else ["cand", "ref"])
        assert [one.position for one in step.runs] == [0, 1]


def test_each_block_starts_with_an_oracle_pair_of_its_own_order() -> None:
    plan = make_plan(7, 10, oracle=True)
    oracle = [step for step in plan.steps if step.kind == "oracle"]
    assert [step.pair for step in oracle] == [0, 4, 8]
    assert [plan.steps.index(step) for step in oracle] == [0, 5, 10]
    many = make_plan(7, 200, oracle=True)
    assert {many.oracle_order(block) for block in range(50)} == {1, -1}


def test_another_seed_or_length_has_another_digest() -> None:
    digests = {
        make_plan(seed, n, oracle).plan_digest
        for seed in (1, 2)
        for n in (6, 9)
        for oracle in (True, False)
    }
    assert len(digests) == 8
    assert make_plan(1, 6).plan_digest == make_plan(1, 6).plan_digest


def test_a_longer_plan_starts_like_a_shorter_one() -> None:
    assert make_plan(5, 40).runs[:18] == make_plan(5, 9).runs


def test_a_plan_of_fewer_than_three_pairs_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 3"):
        make_plan(1, 2)


def test_what_is_done_is_not_done_again() -> None:
    plan = make_plan(7, 9, oracle=True)
    for count in range(len(plan.steps) + 1):
        assert remaining(plan, done(plan, count), []) == plan.steps[count:]


def test_a_step_that_was_cut_in_half_is_done_again_whole() -> None:
    plan = make_plan(7, 9)
    half = done(plan, 4)[:-1]
    assert remaining(plan, half, []) == plan.steps[3:]


def test_a_lost_pair_is_replaced_at_the_end_in_its_own_order() -> None:
    plan = make_plan(7, 8)
    steps = remaining(plan, done(plan, 3), [lost(1), lost(1, "ref"), lost(2)])
    assert [step.pair for step in steps] == [3, 4, 5, 6, 7, 8, 9]
    orders = [1 if step.runs[0].arm == "ref" else -1 for step in steps[-2:]]
    assert orders == [plan.order(1), plan.order(2)]


def test_a_replacement_that_is_lost_is_replaced_too() -> None:
    plan = make_plan(7, 12)
    steps = remaining(plan, [], [lost(5), lost(12)])
    assert [step.pair for step in steps][-1] == 13
    assert steps[-1].runs[0].arm == ("ref" if plan.order(5) == 1 else "cand")
    assert 12 not in [step.pair for step in steps]


def test_no_more_is_replaced_than_may_be_lost() -> None:
    plan = make_plan(7, 8)
    assert plan.most_lost == 2
    steps = remaining(plan, [], [lost(0), lost(1), lost(2)])
    assert [step.pair for step in steps] == [3, 4, 5, 6, 7, 8, 9]


def test_the_oracle_pair_of_a_lost_pair_stands_and_a_lost_oracle_pair_is_not_repeated() -> None:
    plan = make_plan(7, 8, oracle=True)
    steps = remaining(plan, done(plan, 2), [lost(0)])
    assert ("oracle", 0) not in [(step.kind, step.pair) for step in steps]
    assert ("oracle", 8) in [(step.kind, step.pair) for step in steps]
    steps = remaining(plan, [], [lost(4, "oracle")])
    assert ("oracle", 4) not in [(step.kind, step.pair) for step in steps]
    assert ("pair", 4) in [(step.kind, step.pair) for step in steps]
