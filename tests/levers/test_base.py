from __future__ import annotations

from typing import Any

import pytest

from levers.base import OFF, Settings, Site, claims, engaged
from levers.errors import BadSetting, LeverConflict, NotRestored


def first(*arguments: object) -> object:
    return arguments


def second(*arguments: object) -> object:
    return arguments


class Swap:
    """A lever that puts ``second`` in its sites; faults are switched on by attributes."""

    supersedes: tuple[str, ...] = ()
    composes_with: tuple[str, ...] = ()
    raise_at: str | None = None
    restore: Any = None

    def __init__(self, name: str = "swap", touches: tuple[str, ...] = ("one", "two")) -> None:
        self.name, self.touches = name, touches

    def enable(self, site: Site, setting: str) -> object:
        found, site.launch = site.launch, second
        if site.name == self.raise_at:
            raise RuntimeError(f"no {site.name}")
        return found

    def disable(self, site: Site, undo: Any) -> None:
        site.launch = self.restore or undo


def two() -> dict[str, Site]:
    return {name: Site(name, first) for name in ("one", "two", "three")}


def test_an_enable_that_raises_half_way_leaves_nothing_changed() -> None:
    lever, sites = Swap(), two()
    lever.raise_at = "two"
    with pytest.raises(RuntimeError, match="no two"), engaged(lever, sites, "on"):
        raise AssertionError("the body must not run")
    assert all(site.launch is first for site in sites.values())


def test_a_disable_that_puts_back_another_object_is_named_and_put_right() -> None:
    lever, sites = Swap(), two()
    lever.restore = lambda *_: None
    with pytest.raises(NotRestored, match="one, two"), engaged(lever, sites, "on"):
        pass
    assert all(site.launch is first for site in sites.values())


def test_sites_that_are_not_touched_stay() -> None:
    sites = two()
    with engaged(Swap(), sites, "on"):
        assert [site.launch for site in sites.values()] == [second, second, first]


def test_off_engages_nothing() -> None:
    sites = two()
    with engaged(Swap(), sites, OFF):
        assert all(site.launch is first for site in sites.values())


def test_a_site_that_the_workload_lacks_is_a_conflict_that_names_those_it_has() -> None:
    with (
        pytest.raises(LeverConflict, match="'three'"),
        engaged(Swap(touches=("four",)), two(), "on"),
    ):
        pass


def test_levers_on_one_site_conflict_unless_one_of_them_agrees() -> None:
    one, other = Swap("a"), Swap("b")
    with pytest.raises(LeverConflict, match="a and b both change one, two"):
        claims([one, other])
    other.composes_with = ("a",)
    claims([one, other])
    other.composes_with, one.supersedes = (), ("b",)
    claims([one, other])
    claims([one, Swap("c", ("three",))])


def test_observations_count_plans_by_axis() -> None:
    site = Site("one", first)
    for plan in ("num_splits=7", "num_splits=7", "num_splits=3"):
        site.observe("decode/tok_s/c1", plan)
    assert site.observations == {"decode/tok_s/c1": {"num_splits=7": 2, "num_splits=3": 1}}
    site.forget()
    assert site.observations == {}


SETTINGS = Settings((OFF, "auto"), 1, 128)


@pytest.mark.parametrize(("given", "canonical"), [("off", "off"), ("auto", "auto"), ("007", "7")])
def test_a_setting_comes_back_in_canonical_form(given: str, canonical: str) -> None:
    assert SETTINGS.check("cap", given) == canonical


@pytest.mark.parametrize(
    "given", ["on", "0", "129", "-3", "1.5", "", "AUTO", "--5", "²", "9" * 5000]
)
def test_a_setting_out_of_range_names_the_range(given: str) -> None:
    with pytest.raises(BadSetting, match=r"off \| auto \| 1\.\.128"):
        SETTINGS.check("cap", given)


def test_settings_without_off_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="lack 'off'"):
        Settings(("on",))
