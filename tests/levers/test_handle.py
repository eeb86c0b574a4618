"""A lever swaps a site's callable and reads what was seen there; it does not write it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from levers import catalog
from levers.base import Lever, Site, engaged
from levers.errors import BrokenLever, LeverConflict
from levers.handle import RESERVED, held
from tests.support.planted_lever import Planted

LEVERS = Path(__file__).resolve().parents[2] / "levers"
AXIS = "stub/items_s"

LYING = '''
"""A lever that says what ran."""
from dataclasses import dataclass
from tests.support.planted_lever import Planted

@dataclass(frozen=True)
class Lying(Planted):
    def enable(self, site, setting):
        {line}
        return super().enable(site, setting)

LEVER = Lying("lying", lambda found: found)
'''


def original(*arguments: object) -> object:
    return arguments


def lying(write: Callable[[Site], Any], at: str) -> Planted:
    class Lying(Planted):
        def enable(self, site: Site, setting: str) -> object:
            if at == "enable":
                write(site)
            return super().enable(site, setting)

        def disable(self, site: Site, undo: object) -> None:
            super().disable(site, undo)
            if at == "disable":
                write(site)

        def witness(self, site: Site) -> Mapping[str, str]:
            write(site)
            return super().witness(site)

    return Lying("lying", lambda found: found)


def site_of(lever: Planted) -> Site:
    (name,) = lever.touches
    return Site(name, original)


@pytest.mark.parametrize("at", ["enable", "disable"])
@pytest.mark.parametrize(
    "write", [lambda site: site.observe(AXIS, "kernel=mine"), lambda site: site.forget()]
)
def test_a_lever_that_writes_what_was_seen_is_stopped_in_each_hook(
    write: Callable[[Site], None], at: str
) -> None:
    lever = lying(write, at)
    site = site_of(lever)
    with pytest.raises(LeverConflict, match=r"that is the workload's|may not write"):  # noqa: SIM117
        with engaged(cast("Lever", lever), {site.name: site}, "on"):
            site.observe(AXIS, "kernel=plain")
    assert site.observations in ({}, {AXIS: {"kernel=plain": 1}})
    assert site.launch is original


def test_what_a_lever_does_to_its_copy_of_what_was_seen_is_its_own() -> None:
    site = Site("stub.product", original)
    site.observe(AXIS, "kernel=plain")
    handle = held(site)
    handle.observations[AXIS]["kernel=mine"] = 7
    handle.observations.clear()
    assert site.observations == handle.observations == {AXIS: {"kernel=plain": 1}}
    with pytest.raises(AttributeError):
        handle.observations = {}


def test_a_callable_that_keeps_the_site_cannot_write_either() -> None:
    site = Site("stub.product", original)
    handle = held(site)

    def launch(*arguments: object) -> object:
        handle.observe(AXIS, "kernel=mine")
        return arguments

    handle.launch = launch
    assert site.launch is handle.launch is launch
    with pytest.raises(LeverConflict, match=r"'kernel=mine' ran on stub/items_s at stub.product"):
        site.launch()


@pytest.mark.parametrize(
    "line", ['site.observe("a", "b")', 'getattr(site, "observe")("a", "b")', "site.forget()"]
)
def test_a_lever_file_that_would_write_is_listed_as_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    (tmp_path / "lying.py").write_text(LYING.format(line=line))
    monkeypatch.setenv("LEVERGATE_LEVERS", str(tmp_path))
    with pytest.raises(BrokenLever, match="does not write what ran"):
        catalog.get("lying")
    (entry,) = catalog.named(["lying"])
    assert "line 9 of lying.py" in entry.broken


def test_no_lever_and_no_kernel_of_ours_writes_what_was_seen() -> None:
    words = re.compile(rf"\.({'|'.join(RESERVED)})\(")
    files = [path for path in LEVERS.rglob("*.py") if path.name not in ("base.py", "handle.py")]
    assert len(files) > 50
    assert [path.name for path in files if words.search(path.read_text())] == []
