from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from levers import catalog
from levers.apply import apply, switched
from levers.base import OFF, Settings, Site
from levers.errors import BadSetting, LeverConflict, UnknownName


def original() -> str:
    return "original"


SETTINGS = Settings((OFF, "on"), 1, 9)


@dataclass(frozen=True)
class Renames:
    """A lever whose launch gives its name."""

    name: str
    touches: tuple[str, ...] = ("site",)
    supersedes: tuple[str, ...] = ()
    composes_with: tuple[str, ...] = ()
    settings: Settings = SETTINGS

    @property
    def env(self) -> str:
        return f"LEVER_{self.name.upper()}"

    def enable(self, site: Site, setting: str) -> object:
        found = site.launch
        site.launch = lambda: f"{self.name}={setting} over {found()}"
        return found

    def disable(self, site: Site, undo: object) -> None:
        site.launch = undo  # type: ignore[assignment]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> dict[str, Renames]:
    levers = {"one": Renames("one"), "two": Renames("two", ("other",))}

    def get(name: str) -> Renames:
        if name not in levers:
            raise UnknownName("lever", name, levers)
        return levers[name]

    monkeypatch.setattr(catalog, "get", get)
    return levers


def program() -> dict[str, Site]:
    return {"site": Site("site", original), "other": Site("other", original)}


def test_the_on_set_is_engaged_for_the_body_and_restored_after_it(
    known: dict[str, Renames],
) -> None:
    sites = program()
    with apply(sites, {"one": "on", "two": "3"}, variables={}) as on:
        assert on == {"one": "on", "two": "3"}
        assert sites["site"].launch() == "one=on over original"
        assert sites["other"].launch() == "two=3 over original"
    assert all(site.launch is original for site in sites.values())


def test_it_is_restored_after_an_exception(known: dict[str, Renames]) -> None:
    sites = program()
    with pytest.raises(KeyError), apply(sites, {"one": "on", "two": "on"}, variables={}):
        raise KeyError
    assert all(site.launch is original for site in sites.values())


def test_a_kill_switch_wins_over_the_set(known: dict[str, Renames]) -> None:
    sites = program()
    with apply(sites, {"one": "on", "two": "3"}, variables={"LEVER_ONE": "off"}) as on:
        assert on == {"two": "3"}
        assert sites["site"].launch is original
    assert switched(known["one"], "on", {"LEVER_ONE": "5"}) == "5"


def test_kill_switches_are_read_from_the_process_by_default(
    known: dict[str, Renames], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEVER_ONE", "off")
    with apply(program(), {"one": "on"}) as on:
        assert on == {}


def test_everything_is_checked_before_the_first_change(known: dict[str, Renames]) -> None:
    sites = program()
    with pytest.raises(UnknownName), apply(sites, {"one": "on", "three": "on"}, variables={}):
        pass
    with pytest.raises(BadSetting), apply(sites, {"one": "on", "two": "high"}, variables={}):
        pass
    with (
        pytest.raises(BadSetting, match="maybe"),
        apply(sites, {"one": "on"}, variables={"LEVER_ONE": "maybe"}),
    ):
        pass
    assert all(site.launch is original for site in sites.values())


def test_two_levers_on_one_site_conflict_and_agreed_ones_stack(known: dict[str, Renames]) -> None:
    sites = program()
    known["two"] = Renames("two")
    with pytest.raises(LeverConflict), apply(sites, {"one": "on", "two": "on"}, variables={}):
        pass
    with apply(sites, {"one": "on", "two": "off"}, variables={}) as on:
        assert on == {"one": "on"}
    known["two"] = replace(known["two"], composes_with=("one",))
    with apply(sites, {"one": "on", "two": "on"}, variables={}):
        assert sites["site"].launch() == "two=on over one=on over original"
    assert sites["site"].launch is original


def test_a_missing_site_leaves_what_came_before_restored(known: dict[str, Renames]) -> None:
    sites = {"site": Site("site", original)}
    with pytest.raises(LeverConflict), apply(sites, {"one": "on", "two": "on"}, variables={}):
        pass
    assert sites["site"].launch is original
