from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import split_table
from levers.errors import BadParameter
from levers.kernels.split_heuristic import DecodeShape
from levers.kernels.split_kv_rules import BackendRule, CappedRule, chosen_splits
from levers.kernels.tuned_splits import has_table, measured_on, nearest, table_of, tuned_splits
from levers.kernels.tuned_splits_h200 import TABLES
from levers.kernels.tuned_splits_table import TunedRow, TunedTable, row_of

H200 = "NVIDIA H200"
MEASURED = Path(__file__).parents[3] / "docs/results/h200/split_table.json"
TABLE_IDS = [f"{table.backend} on {table.device}" for table in TABLES]


def shape(
    batch: int, tokens: int, backend: str = "fa2", heads: int = 0, kv_heads: int = 8
) -> DecodeShape:
    return DecodeShape(batch, kv_heads, tokens, 128, 132, backend, heads)


@pytest.mark.parametrize("table", TABLES, ids=TABLE_IDS)
def test_the_count_of_every_row_is_within_1_percent_of_the_fastest(table) -> None:  # type: ignore[no-untyped-def]
    assert table.rows
    for row in table.rows:
        assert row.least_us <= row.us <= 1.01 * row.least_us, row
        assert row.splits != 0 or row.us == row.rule_us


@pytest.mark.parametrize("table", TABLES, ids=TABLE_IDS)
def test_a_measured_shape_gets_its_own_row(table) -> None:  # type: ignore[no-untyped-def]
    for row in table.rows:
        asked = DecodeShape(
            row.batch, table.kv_heads, row.tokens, table.kv_block, 132, "", row.query_heads
        )
        assert nearest(table, asked) is row


@pytest.mark.parametrize("table", TABLES, ids=TABLE_IDS)
def test_rows_are_given_once_and_the_device_is_named(table) -> None:  # type: ignore[no-untyped-def]
    keys = [(row.query_heads, row.tokens, row.batch) for row in table.rows]
    assert len(set(keys)) == len(keys)
    assert table.source
    assert measured_on(table.sm_count)


def test_the_table_raises_a_count_as_well_as_it_lowers_it() -> None:
    assert tuned_splits(shape(2, 2048, heads=32), 4, H200) == 8
    assert tuned_splits(shape(1, 4096, heads=32), 24, H200) == 16


def test_the_own_rule_is_kept_where_it_is_the_fastest() -> None:
    assert tuned_splits(shape(1, 512, heads=32), 4, H200) == 4
    assert tuned_splits(shape(1, 8192, "fa3", 32), 0, H200) == 0


def test_a_count_is_at_most_the_kv_blocks_unless_the_backend_has_smaller_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = (TunedRow(16, 2048, 1, 16, 1.0, 2.0, 1.0), TunedRow(16, 2048, 8, 24, 1.0, 2.0, 1.0))
    table = TunedTable("X", 132, "fa2", 8, 128, "made up", rows)
    monkeypatch.setattr("levers.kernels.tuned_splits.TABLES", (table,))
    assert tuned_splits(shape(1, 1100), 4, "X") == 9
    assert tuned_splits(shape(8, 1100), 4, "X") == 24


def test_a_shape_between_two_rows_takes_the_nearer_one() -> None:
    row = nearest(table_of(H200, "fa3"), shape(1, 2176, "fa3", 32))
    assert (row.tokens, row.batch) == (2048, 1)


def test_another_number_of_kv_heads_counts_as_blocks() -> None:
    row = nearest(table_of(H200, "fa2"), shape(64, 4096, kv_heads=4, heads=16))
    assert row.batch == 32


def test_rows_of_other_query_heads_serve_where_none_of_the_same_is_near() -> None:
    table = table_of(H200, "fa2")
    assert nearest(table, shape(32, 4096, heads=16)).query_heads == 16
    other = nearest(table, shape(1, 4096, heads=64))
    assert (other.query_heads, other.tokens) in {(16, 4096), (32, 4096)}


def test_a_shape_far_from_all_rows_is_an_error_with_its_cure() -> None:
    with pytest.raises(BadParameter, match="no row near") as error:
        tuned_splits(shape(1, 131072, heads=32), 8, H200)
    assert "--tokens 131072 --batch 1" in error.value.cure


def test_a_device_or_backend_without_a_table_is_an_error_that_names_those_there_are() -> None:
    with pytest.raises(BadParameter, match="fa2 on NVIDIA H200") as error:
        table_of("NVIDIA L4", "fa2")
    assert "benchmarks/split_table.py --backend fa2" in error.value.cure
    assert not measured_on(58)
    assert has_table(H200, "fa2")
    assert not has_table("NVIDIA L4", "fa2")


def test_chosen_splits_knows_every_setting() -> None:
    launch = shape(2, 2048, heads=32)
    found = {name: chosen_splits(launch, name, 5, H200) for name in ("off", "auto", "3", "tuned")}
    assert found == {"off": 5, "auto": 5, "3": 3, "tuned": 8}


def test_a_rule_of_a_backend_and_a_cap_may_be_wrapped_in_either_order() -> None:
    seen = []

    def rule(launch: DecodeShape) -> int:
        seen.append(launch.backend)
        return 24

    asked = shape(1, 4096, backend="", heads=32)
    inner = CappedRule(BackendRule(rule, "fa2"), "tuned", lambda: H200)
    outer = BackendRule(CappedRule(rule, "tuned", lambda: H200), "fa2")
    assert [inner(asked), outer(asked)] == [16, 16]
    assert seen == ["fa2", "fa2"]
    assert inner.backend == outer.backend == "fa2"


@given(
    us=st.dictionaries(st.integers(1, 32), st.floats(1.0, 1e3), max_size=8), rule=st.floats(1, 1e3)
)
def test_a_row_takes_a_count_within_half_a_percent_of_the_fastest(
    us: dict[int, float], rule: float
) -> None:
    row = row_of(32, 2048, 1, {0: rule, **us})
    assert row.us <= 1.005 * row.least_us
    assert row.least_us == min(rule, *us.values(), rule)
    assert row.rule_us == rule


def test_of_equally_fast_counts_the_smallest_is_taken() -> None:
    assert row_of(32, 2048, 1, {0: 9.0, 16: 5.0, 4: 5.0}).splits == 4


def test_the_tables_are_those_of_the_measured_file() -> None:
    reports = [json.loads(MEASURED.read_text())]
    assert split_table.MODULE.read_text() == split_table.module_text(reports)


@pytest.mark.parametrize("table", TABLES, ids=TABLE_IDS)
def test_no_count_of_the_measured_file_is_more_than_1_percent_faster(table) -> None:  # type: ignore[no-untyped-def]
    report = json.loads(MEASURED.read_text())
    (found,) = [one for one in report["tables"] if one["backend"] == table.backend]
    assert len(found["rows"]) == len(table.rows)
    chosen = {(row.query_heads, row.tokens, row.batch): row.splits for row in table.rows}
    for row in found["rows"]:
        splits = chosen[row["query_heads"], row["tokens"], row["batch"]]
        assert row["us"][str(splits)] <= 1.01 * min(row["us"].values())
