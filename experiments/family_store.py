"""Selections on disk: a folder each below ``families`` of the home, with the record in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from experiments.files import write_atomically
from experiments.home import Home
from experiments.values import problem_of
from levers.errors import StoreError, UsageError

if TYPE_CHECKING:
    from experiments.family_records import FamilyRecord

FAMILIES = "families"
"""Folder of the home that holds the selections: apart from the runs, since none is a verdict."""

RECORD = "family.json"


def folder(home: Home, family_id: str) -> Path:
    """Where a selection and the evidence of its settings lie."""
    return home.root / FAMILIES / family_id


def save(home: Home, record: FamilyRecord) -> Path:
    """Write the record of a selection, wholly or not at all; returns its path."""
    path = folder(home, record.family_id) / RECORD
    write_atomically(path, record.model_dump_json())
    return path


def ids(home: Home) -> list[str]:
    """The ids of the selections on disk, oldest first."""
    return sorted(path.parent.name for path in (home.root / FAMILIES).glob(f"*/{RECORD}"))


def found(home: Home, family_id: str) -> FamilyRecord | None:
    """The selection of that id, or an unambiguous beginning of it; None where there is none.

    Raises:
        UsageError: the beginning fits several.
        StoreError: its record cannot be read.
    """
    fits = [name for name in ids(home) if family_id and name.startswith(family_id)]
    if family_id in fits:
        fits = [family_id]
    if len(fits) > 1:
        raise UsageError(
            f"{family_id!r} fits {len(fits)} selections", cure=f"give more: {', '.join(fits[-8:])}"
        )
    return _read(folder(home, fits[0]) / RECORD) if fits else None


def _read(path: Path) -> FamilyRecord:
    from experiments.family_records import FamilyRecord

    try:
        return FamilyRecord.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise StoreError(
            f"{path} is no selection of this version: {problem_of(error)}",
            cure="read it with the version of levergate that wrote it",
        ) from error
