from __future__ import annotations

import pytest

from experiments.candidates import MOST, candidates
from levers.errors import UsageError


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("auto", ("auto",)),
        ("auto,1,2", ("auto", "1", "2")),
        (" auto , 1..3 ", ("auto", "1", "2", "3")),
        ("2,1..3,2", ("2", "1", "3")),
    ],
)
def test_settings_come_in_order_and_each_once(text: str, found: tuple[str, ...]) -> None:
    assert candidates(text) == found


@pytest.mark.parametrize("text", ["", "a,", "3..3", "9..1", "1..999"])
def test_a_list_that_names_no_run_is_refused_with_its_cure(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        candidates(text)
    assert refused.value.cure


def test_the_largest_range_is_as_long_as_a_run_may_have_settings() -> None:
    assert len(candidates(f"1..{MOST}")) == MOST
