from __future__ import annotations

import os
from pathlib import Path

import pytest

from experiments import home
from levers.errors import StoreError


def checkout_in(folder: Path) -> Path:
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    (folder / "cli.py").touch()
    return folder


def test_the_variable_names_the_home(tmp_path: Path) -> None:
    found = home.find({"LEVERGATE_HOME": str(tmp_path / "mine")}, Path("/elsewhere"))
    assert found.root == tmp_path / "mine"


def test_a_checkout_is_the_home_when_no_variable_is_set(tmp_path: Path) -> None:
    checkout = checkout_in(tmp_path / "project")
    assert home.find({}, tmp_path, checkout).root == checkout


def test_elsewhere_the_home_is_below_the_current_folder(tmp_path: Path) -> None:
    assert home.find({}, tmp_path, tmp_path / "site-packages").root == tmp_path / ".levergate"


def test_device_locks_are_shared_by_all_homes_of_a_machine(tmp_path: Path) -> None:
    one = home.find({"LEVERGATE_HOME": str(tmp_path / "one")}, tmp_path)
    other = home.find({"LEVERGATE_HOME": str(tmp_path / "other")}, tmp_path)
    assert one.device_locks == other.device_locks


def test_make_makes_every_folder(tmp_path: Path) -> None:
    made = home.find(
        {"LEVERGATE_HOME": str(tmp_path / "h"), "LEVERGATE_LOCKS": str(tmp_path / "l")}, tmp_path
    ).make()
    assert all(f.is_dir() for f in (made.runs, made.cache, made.work, made.locks))
    assert made.device_locks == tmp_path / "l"


def test_a_home_below_a_file_is_an_error_that_names_the_cure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="set LEVERGATE_HOME"):
        home.make_folder(tmp_path / "file" / "home")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_home_is_an_error_that_names_the_cure(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="LEVERGATE_HOME"):
        home.make_folder(tmp_path / "home")


def test_a_read_only_home_with_a_registry_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = home.find({"LEVERGATE_HOME": str(tmp_path), "LEVERGATE_LOCKS": str(tmp_path)}, tmp_path)
    monkeypatch.setattr(home.os, "access", lambda *_: False)
    with pytest.raises(StoreError, match="cannot be written to"):
        found.to_read()
    found.registry.touch()
    assert found.to_read() == found
    with pytest.raises(StoreError, match="cannot be written to"):
        found.make()
