from __future__ import annotations

from pathlib import Path

import pytest
from support import records_factory as factory

from experiments import naming
from experiments.family import store as family_store
from experiments.home import Home
from experiments.registry.store import Registry
from experiments.stack import store as stack_store
from levers.errors import UsageError

RUN = factory.default_on().run_id


@pytest.fixture
def home(tmp_path: Path) -> Home:
    where = Home(tmp_path, tmp_path / "locks").make()
    with Registry.open(where.registry) as registry:
        registry.save(factory.default_on())
    return where


def keep(where: Home, folder: str, name: str, file: str) -> None:
    path = where.root / folder / name / file
    path.parent.mkdir(parents=True)
    path.write_text("{}")


def keep_stack(where: Home, stack_id: str) -> None:
    keep(where, stack_store.FOLDER, stack_id, stack_store.HEAD)


def test_without_stacks_and_selections_every_beginning_is_a_runs(home: Home) -> None:
    assert naming.kind_of(home, RUN[:4]) == "run"
    assert naming.kind_of(home, "nothing") == "run"
    assert naming.kind_of(home, "") == "run"


def test_a_beginning_that_fits_runs_and_a_stack_lists_both(home: Home) -> None:
    stack = f"{RUN[:8]}T000000-stack"
    keep_stack(home, stack)
    with pytest.raises(UsageError, match=rf"fits 2.*stack {stack}, run {RUN}"):
        naming.kind_of(home, RUN[:6])
    assert naming.kind_of(home, stack) == "stack"
    assert naming.kind_of(home, stack[:12]) == "stack"
    assert naming.kind_of(home, RUN) == "run"


def test_a_whole_id_is_meant_even_where_a_longer_one_begins_so(home: Home) -> None:
    keep_stack(home, f"{RUN}-more")
    assert naming.kind_of(home, RUN) == "run"
    keep(home, family_store.FAMILIES, f"{RUN}-more-still", family_store.RECORD)
    assert naming.kind_of(home, f"{RUN}-more") == "stack"
    assert naming.kind_of(home, f"{RUN}-more-") == "selection"


def test_a_run_that_is_only_on_disk_is_listed_too(home: Home) -> None:
    keep_stack(home, "2027-stack")
    keep(home, "runs", "2027-run", "spec.json")
    with pytest.raises(UsageError, match="stack 2027-stack, run 2027-run"):
        naming.kind_of(home, "2027")
