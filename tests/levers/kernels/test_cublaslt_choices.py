"""Which algorithm is kept, and how processes share the choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from levers.errors import StoreError
from levers.kernels import cublaslt_tuning
from levers.kernels.cublaslt_abi import Algorithm
from levers.kernels.cublaslt_choices import Choices, folder_of
from levers.kernels.cublaslt_tuning import best, interleaved_us, put_under_load


def test_the_first_proposal_is_left_for_a_clear_gain_alone() -> None:
    assert best([100.0, 98.5]) == 0
    assert best([100.0, 96.0, 90.0]) == 2
    assert best([5.0]) == 0
    with pytest.raises(ValueError, match="no algorithm"):
        best([])


def test_the_rounds_go_over_all_candidates_and_the_median_is_taken() -> None:
    order: list[str] = []
    clocked = iter(range(100))
    calls = [lambda: order.append("a"), lambda: order.append("b")]

    def clock(call: Any) -> float:
        call()
        return float(next(clocked))

    found = interleaved_us(calls, clock)
    assert order == ["a", "b"] * (1 + cublaslt_tuning.ROUNDS)
    assert found == [4.0, 5.0]


def test_the_device_is_at_work_before_anything_is_timed() -> None:
    asked = 0

    def clock(call: Any) -> float:
        nonlocal asked
        asked += 1
        return 1000.0

    put_under_load(lambda: None, clock)
    assert asked == cublaslt_tuning.LOAD_US / (1000.0 * cublaslt_tuning.IN_A_ROW)
    asked = 0
    put_under_load(lambda: None, lambda call: clock(call) * 1e-9)
    assert asked == cublaslt_tuning.MOST_LOAD_CALLS


def test_who_measures_at_the_same_time_takes_the_first_choice_too(tmp_path: Path) -> None:
    one, other = Algorithm(), Algorithm()
    one.data[0], other.data[0] = 4, 5
    choices = Choices(tmp_path / "new", "a stack")
    assert choices.find("p") is None
    assert choices.keep("p", one).data[0] == 4
    assert choices.keep("p", other).data[0] == 4
    assert choices.keep("q", other).data[0] == 5
    assert Choices(tmp_path / "new", "another").find("p") is None
    assert len(list((tmp_path / "new").iterdir())) == 2


def test_without_a_cache_nothing_is_kept(tmp_path: Path) -> None:
    assert folder_of({}) is None
    assert folder_of({"TRITON_CACHE_DIR": str(tmp_path)}) == tmp_path / "cublaslt"
    one = Algorithm()
    assert Choices(None, "a stack").keep("p", one) is one
    assert Choices(None, "a stack").find("p") is None


def test_a_choice_that_cannot_be_read_or_written_is_an_error_with_a_cure(tmp_path: Path) -> None:
    choices = Choices(tmp_path, "a stack")
    choices.keep("p", Algorithm())
    (held,) = tmp_path.iterdir()
    held.write_bytes(b"short")
    with pytest.raises(StoreError, match="5 bytes, not 64; remove it"):
        choices.find("p")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot write"):
        Choices(tmp_path / "file" / "folder", "a stack").keep("p", Algorithm())
