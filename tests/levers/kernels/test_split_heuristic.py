from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levers.kernels.split_heuristic import (
    DecodeShape,
    capped_splits,
    heuristic_splits,
    kv_block_tokens,
    upstream_splits,
)

CASES = Path(__file__).parents[2] / "cases" / "num_splits.csv"
ROWS = [
    {name: int(value) for name, value in row.items()}
    for row in csv.DictReader(CASES.read_text().splitlines())
]
PUBLISHED = [(1, 7, 4, 6, 3), (2, 4, 3, 3, 3), (4, 3, 3, 1, 3), (8, 3, 1, 1, 3), (16, 1, 1, 1, 1)]


def shape(batch: int, kv_heads: int = 8, kv_tokens: int = 896, sms: int = 48) -> DecodeShape:
    return DecodeShape(batch, kv_heads, kv_tokens, kv_block=128, sm_count=sms)


@pytest.mark.parametrize(("c", "at_96", "at_48", "auto", "cap3"), PUBLISHED)
def test_the_published_table_is_reproduced(
    c: int, at_96: int, at_48: int, auto: int, cap3: int
) -> None:
    splits = upstream_splits(shape(c))
    assert splits == at_96 == heuristic_splits(8 * c, 96, 7)
    assert heuristic_splits(8 * c, 48, 7) == at_48
    assert capped_splits(shape(c), "off", splits) == at_96
    assert capped_splits(shape(c), "auto", splits) == auto
    assert capped_splits(shape(c), "3", splits) == cap3


def test_the_vectors_are_all_there() -> None:
    assert len(ROWS) == 200


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_every_recorded_vector_is_reproduced(row: dict[str, int]) -> None:
    launch = DecodeShape(row["batch"], row["kv_heads"], row["kv_blocks"] * 128, 128, row["sms"])
    assert launch.blocks == row["blocks"]
    assert launch.kv_blocks == row["kv_blocks"]
    splits = upstream_splits(launch)
    assert splits == row["heuristic"]
    assert capped_splits(launch, "auto", splits) == row["auto"]
    assert capped_splits(launch, "3", splits) == row["cap3"]


@pytest.mark.parametrize(("head_dim", "tokens"), [(64, 256), (128, 128), (256, 64)])
def test_the_kv_block_follows_the_head_dimension(head_dim: int, tokens: int) -> None:
    assert kv_block_tokens(head_dim) == tokens


def test_an_unknown_setting_of_the_cap_is_an_error() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        capped_splits(shape(1), "fast", 7)


@given(
    batch=st.integers(1, 64),
    kv_heads=st.integers(1, 32),
    kv_tokens=st.integers(1, 65536),
    sms=st.integers(1, 256),
)
def test_a_cap_never_raises_the_count_and_never_goes_below_one(
    batch: int, kv_heads: int, kv_tokens: int, sms: int
) -> None:
    launch = DecodeShape(batch, kv_heads, kv_tokens, 128, sms)
    splits = upstream_splits(launch)
    assert 1 <= splits <= min(128, launch.kv_blocks)
    for setting in ("off", "auto", "1", "3", "128"):
        assert 1 <= capped_splits(launch, setting, splits) <= splits
