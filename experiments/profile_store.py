"""The profile of a run on disk: beside its journal, since a decided record is not written again."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from experiments.files import write_atomically
from experiments.home import Home, make_folder
from experiments.profiling_records import Profile
from levers.errors import StoreError

PROFILE = "profile.json"


def file_of(where: Home, run_id: str) -> Path:
    """Where the profile of a run lies, if it has one."""
    return where.runs / run_id / PROFILE


def found(where: Home, run_id: str) -> Profile | None:
    """The profile of a run; None where it was not profiled.

    Raises:
        StoreError: it cannot be read.
    """
    path = file_of(where, run_id)
    if not path.is_file():
        return None
    try:
        return Profile.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        cure = f"levergate roofline {run_id} --record"
        raise StoreError(f"cannot read {path}", cure=cure) from error


def keep(where: Home, run_id: str, profile: Profile) -> None:
    """Write the profile of a run, wholly or not at all.

    Raises:
        StoreError: the disk is full or read-only.
    """
    make_folder(where.runs / run_id)
    write_atomically(file_of(where, run_id), profile.model_dump_json())
