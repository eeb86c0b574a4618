from __future__ import annotations

from types import SimpleNamespace

import pytest

from experiments.candidates import MOST, candidates, usual
from levers import catalog
from levers.base import Settings
from levers.errors import BadSetting, UsageError


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


def test_the_usual_candidate_is_auto_or_the_only_setting_beside_off() -> None:
    assert usual(catalog.get("fa2_nsplits_cap")) == "auto"
    assert usual(catalog.get("segment_sum_broadcast")) == "on"


@pytest.mark.parametrize(
    "settings", [Settings(("off", "fa2", "fa4")), Settings(("off", "on"), 1, 8), Settings(("off",))]
)
def test_of_several_settings_none_is_usual_and_the_error_lists_them(settings: Settings) -> None:
    with pytest.raises(BadSetting) as refused:
        usual(SimpleNamespace(name="several", settings=settings))
    assert settings.describe() in refused.value.cure
