from __future__ import annotations

import pytest

from experiments.spec import LeverSetting
from experiments.stack.plan import (
    Rows,
    Schedule,
    leave_one_out,
    most_lost,
    order,
    overlap,
    overlaps,
    waterfall,
)
from experiments.stack.policy import wider
from levers.policy import Tolerance
from tests.support.fake_arms import FakeLever

A, B, C = (LeverSetting(lever=name, setting="on") for name in "abc")


def test_a_set_of_levers_that_several_tables_need_is_measured_once() -> None:
    rows = Rows()
    waterfall([A, B], rows)
    assert leave_one_out([A, B], rows) == (3, 1)
    found = rows.all()
    assert [row.name for row in found] == ["no lever", "a=on", "a=on + b=on", "b=on"]
    assert found[1].parts == ("waterfall", "leave-one-out")


def test_leaving_out_keeps_the_order_of_the_others() -> None:
    rows = Rows()
    waterfall([A, B, C], rows)
    leave_one_out([A, B, C], rows)
    assert [row.levers for row in rows.all()[4:]] == [(B, C), (A, C)]


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        ({"touches": ("x", "y")}, {"touches": ("y",)}, "both change y"),
        ({"touches": ("x",), "supersedes": ("b",)}, {"touches": ("y",)}, "a supersedes b"),
        ({"touches": ("x",)}, {"touches": ("y",), "composes_with": ("a",)}, "b composes with a"),
        ({"touches": ("x",)}, {"touches": ("y",)}, ""),
    ],
)
def test_levers_overlap_by_site_or_by_what_they_say(one: dict, other: dict, why: str) -> None:
    assert overlap(FakeLever(name="a", **one), FakeLever(name="b", **other)) == why


def test_an_overlap_needs_neither_each_alone_and_both() -> None:
    rows = Rows()
    waterfall([A, B, C], rows)
    levers = [FakeLever(name=name, touches=("x" if name != "b" else "y",)) for name in "abc"]
    (found,) = overlaps([A, B, C], levers, rows)
    assert found.levers == ("a", "c")
    assert [rows.all()[index].levers for index in found.rows] == [(), (A,), (C,), (A, C)]


def test_each_second_block_is_the_mirror_of_the_one_before() -> None:
    for pair in range(0, 8, 2):
        first, second = order(5, pair, 6), order(5, pair + 1, 6)
        assert sorted(first) == list(range(6))
        assert second == first[::-1]
    assert len({order(5, block, 6) for block in range(8)}) > 4


def test_a_lost_block_is_measured_again_in_its_own_order() -> None:
    schedule = Schedule(1, 4, 3)
    assert schedule.left([0], []) == [(1, 1), (2, 2), (3, 3)]
    assert schedule.left([0, 2, 3], [1]) == [(4, 1)]
    assert schedule.counting([0, 2, 3, 4], [1]) == (0, 2, 3, 4)
    assert schedule.counting([0, 2, 3], [1]) == (2, 3)


def test_no_more_blocks_are_replaced_than_may_be_lost() -> None:
    assert most_lost(8) == 2
    assert Schedule(1, 8, 3).left(range(3, 8), [0, 1, 2]) == [(8, 0), (9, 1)]


def test_levers_together_may_show_the_larger_of_each_error_that_they_declare() -> None:
    forward, backward = Tolerance(0.05, "fp8 products"), Tolerance(0.01, "fp8 grads", 0.03)
    both = wider((forward, backward))
    assert both == Tolerance(0.05, "fp8 products; fp8 grads", 0.03)
    assert wider((backward, forward)) == Tolerance(0.05, "fp8 grads; fp8 products", 0.03)
    assert wider((forward,)) == forward
    assert wider(()) is None
