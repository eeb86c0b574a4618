"""Selections on disk: a folder each below ``families`` of the home, with the record in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from experiments.files import write_atomically
from experiments.home import Home
from experiments.values import Value, problem_of
from levers.errors import StoreError, UsageError

if TYPE_CHECKING:
    from experiments.family.records import FamilyHead, FamilyRecord

V = TypeVar("V", bound=Value)

FAMILIES = "families"
"""Folder of the home that holds the selections: apart from the runs, since none is a verdict."""

HEAD, RECORD = "selection.json", "family.json"


def folder(home: Home, family_id: str) -> Path:
    """Where a selection and the evidence of its settings lie."""
    return home.root / FAMILIES / family_id


def save(home: Home, record: FamilyRecord) -> Path:
    """Write the record of a selection, wholly or not at all; returns its path."""
    path = folder(home, record.family_id) / RECORD
    write_atomically(path, record.model_dump_json())
    return path


def ids(home: Home) -> list[str]:
    """The ids of the selections on disk, oldest first, with those that were interrupted."""
    files = [*(home.root / FAMILIES).glob(f"*/{HEAD}"), *(home.root / FAMILIES).glob(f"*/{RECORD}")]
    return sorted({path.parent.name for path in files})


def folders(home: Home) -> tuple[Path, ...]:
    """The folder of each selection: the evidence of its settings lies there as runs do."""
    return tuple(folder(home, family_id) for family_id in ids(home))


def begin(home: Home, head: FamilyHead) -> None:
    """Write what is needed to go on with a selection, before its first process."""
    write_atomically(folder(home, head.family_id) / HEAD, head.model_dump_json())


def begun(home: Home, family_id: str) -> FamilyHead | None:
    """The head of the selection of that id or beginning; None where there is none.

    Raises:
        UsageError: the beginning fits several.
        StoreError: it cannot be read.
    """
    name = _resolved(home, family_id)
    path = folder(home, name) / HEAD
    if not name or not path.is_file():
        return None
    from experiments.family.records import FamilyHead

    return _read(path, FamilyHead)


def found(home: Home, family_id: str) -> FamilyRecord | None:
    """The ended selection of that id, or of an unambiguous beginning; None where there is none.

    Raises:
        UsageError: the beginning fits several.
        StoreError: its record cannot be read.
    """
    name = _resolved(home, family_id)
    path = folder(home, name) / RECORD
    if not name or not path.is_file():
        return None
    from experiments.family.records import FamilyRecord

    return _read(path, FamilyRecord)


def _resolved(home: Home, family_id: str) -> str:
    """The whole id of a selection; empty where there is none."""
    fits = [name for name in ids(home) if family_id and name.startswith(family_id)]
    if family_id in fits:
        return family_id
    if len(fits) > 1:
        raise UsageError(
            f"{family_id!r} fits {len(fits)} selections", cure=f"give more: {', '.join(fits[-8:])}"
        )
    return fits[0] if fits else ""


def _read(path: Path, kind: type[V]) -> V:
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise StoreError(
            f"{path} is no selection of this version: {problem_of(error)}",
            cure="read it with the version of levergate that wrote it",
        ) from error
