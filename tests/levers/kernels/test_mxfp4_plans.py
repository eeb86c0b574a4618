from __future__ import annotations

import pytest

from levers.kernels.mxfp4_plans import (
    SMS,
    WARPS_AN_SM,
    Plan,
    depth_of,
    even_depth,
    plan_of,
    row_class,
    rule,
)
from levers.kernels.mxfp4_plans_h200 import PLANS

SHAPES = [(6144, 2560), (2560, 4096), (9728, 2560), (2560, 9728), (151936, 2560), (1024, 2048)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 8, 9, 32])
def test_the_rule_gives_every_sm_warps_as_far_as_there_are_units(
    shape: tuple[int, int], rows: int
) -> None:
    plan = rule(*shape, rows, gate=False)
    enough = plan.programs(shape[0]) * plan.warps >= SMS * WARPS_AN_SM
    assert enough or plan.warps == 8
    assert plan.tiles == (1 if rows <= 8 else 2)
    assert 1 <= plan.depth <= {1: 5, 8: 5, 9: 2, 32: 1}[rows]


def test_a_depth_brings_bytes_under_way_and_leaves_few_steps_empty() -> None:
    assert rule(6144, 2560, 1, gate=False) == Plan(1, 4, 5)
    assert rule(2560, 4096, 1, gate=False) == Plan(1, 8, 4)
    assert rule(9728, 2560, 1, gate=True) == Plan(1, 4, 1)
    assert rule(2560, 9728, 1, gate=False) == Plan(1, 8, 5)
    assert depth_of(steps=7, most=5, wanted=9) == 5
    assert depth_of(steps=2, most=5, wanted=3) == 2


def test_rounds_are_of_equal_depth_and_no_step_is_left() -> None:
    for steps in range(1, 40):
        for most in range(1, 9):
            depth = even_depth(steps, most)
            rounds = -(-steps // depth)
            assert depth <= most
            assert rounds == -(-steps // most)
            assert rounds * depth - steps < rounds


def test_a_measured_shape_takes_the_table_and_another_the_rule() -> None:
    table = {(4096, 1024, False, 8): Plan(2, 8, 3, "end")}
    for rows in (2, 8):
        assert plan_of(4096, 1024, rows, gate=False, table=table) == Plan(2, 8, 3, "end")
    assert plan_of(4096, 1024, 1, gate=False, table=table) == rule(4096, 1024, 1, gate=False)
    assert plan_of(4096, 1024, 8, gate=True, table=table) == rule(4096, 1024, 8, gate=True)


def test_rows_take_the_class_that_holds_them() -> None:
    assert [row_class(rows) for rows in (1, 2, 8, 9, 16, 17, 32)] == [1, 8, 8, 16, 16, 32, 32]


def test_the_shipped_table_holds_whole_plans() -> None:
    for (outputs, inputs, gate, rows), plan in PLANS.items():
        assert rows == row_class(rows)
        assert outputs % 16 == inputs % 128 == 0
        assert plan.tiles in (1, 2, 4)
        assert plan.warps in (1, 2, 4, 8)
        assert 1 <= plan.depth <= 10
        assert plan.early in ("", "start", "end")
        assert plan_of(outputs, inputs, rows, gate=gate) == plan
