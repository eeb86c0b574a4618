from __future__ import annotations

import pytest

from experiments.workloads import catalog
from levers.errors import BadParameter, UnknownName


@pytest.mark.parametrize("target", ["nowhere:THING", "experiments.workloads.base:NOTHING"])
def test_a_workload_that_does_not_load_names_the_cure(
    monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.setenv(catalog.VARIABLE, f"mine={target}")
    with pytest.raises(BadParameter, match=r"cannot be loaded.*LEVERGATE_WORKLOADS"):
        catalog.get("mine")


def test_an_unknown_workload_suggests_the_closest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'decode'"):
        catalog.get("decoder")


def test_the_name_of_a_built_in_workload_is_not_given_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEVERGATE_WORKLOADS", "decode=bar:X")
    with pytest.raises(BadParameter, match="built in"):
        catalog.get("decode")
