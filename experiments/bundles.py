"""Evidence bundles: one run's whole record in one file, which another machine can take in.

A bundle carries a digest of its record, so that damage and careless edits are found; it is not a
signature, since whoever edits the record can also write the digest anew.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from experiments import profile_store
from experiments.files import write_atomically
from experiments.home import Home, make_folder
from experiments.profiling_records import Profile
from experiments.run_record import RunRecord
from experiments.values import SCHEMA_VERSION, problem_of
from levers.errors import BadParameter, StoreError

if TYPE_CHECKING:
    from experiments.registry.store import Registry, Saved

FORMAT = "levergate-bundle"
SUFFIX = ".levergate.json"
BEGINNING = 200
"""Bytes of a bundle in which its format stands."""

JOURNAL_SUFFIX = ".jsonl"
"""What a run writes as it goes: evidence too, but neither whole nor with a digest."""


def bundle_name(record: RunRecord) -> str:
    """The file name under which a run's bundle is kept."""
    return f"{record.run_id}{SUFFIX}"


def dump(record: RunRecord, profile: Profile | None = None) -> str:
    """The bundle of a run as text, with its profile if it has one."""
    content = json.loads(record.model_dump_json())
    bundle: dict[str, Any] = {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "run_id": record.run_id,
        "digest": _digest(content),
        "record": content,
    }
    if profile is not None:
        shown = json.loads(profile.model_dump_json())
        bundle |= {"profile": shown, "profile_digest": _digest(shown)}
    return json.dumps(bundle, indent=1, ensure_ascii=False) + "\n"


def export(record: RunRecord, path: Path, profile: Profile | None = None) -> Path:
    """Write the bundle of a run, whole or not at all.

    Args:
        record: the run.
        path: the file to write, or a folder, in which it gets its usual name.
        profile: of the run's candidate, if one was taken.

    Returns:
        The file that was written.

    Raises:
        StoreError: the disk is full or read-only.
    """
    target = path / bundle_name(record) if path.is_dir() else path
    make_folder(target.parent)
    write_atomically(target, dump(record, profile))
    return target


def read_bundle(path: Path) -> RunRecord:
    """The run in a bundle.

    Raises:
        BadParameter: there is no such file, or it is no bundle at all.
        StoreError: it is damaged, edited, or from a newer version; names the cure.
    """
    bundle = _parsed(path)
    version = bundle.get("schema_version")
    if not isinstance(version, int):
        raise _damaged(path, "it has no schema version")
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"the bundle {path} has schema version {version}; this levergate knows up to "
            f"{SCHEMA_VERSION}",
            cure="upgrade levergate",
        )
    content = bundle.get("record")
    found = _digest(content)
    if found != bundle.get("digest"):
        raise StoreError(
            f"the bundle {path} was edited or damaged: its record has digest {found[:16]}, the "
            f"bundle says {str(bundle.get('digest'))[:16]}",
            cure="export the run again where it was measured",
        )
    try:
        return RunRecord.model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise _damaged(path, f"its record is not legal: {problem_of(error)}") from error


def import_bundle(registry: Registry, path: Path) -> tuple[RunRecord, Saved]:
    """Take a bundle into the registry; doing so twice changes nothing.

    Raises:
        BadParameter: there is no such file, or it is no bundle at all.
        StoreError: the bundle cannot be read, or the run is stored with another content.
    """
    record = read_bundle(path)
    return record, registry.save(record)


def read_profile(path: Path) -> Profile | None:
    """The profile in a bundle; None where the run was not profiled.

    Raises:
        BadParameter: there is no such file, or it is no bundle at all.
        StoreError: it is damaged or edited.
    """
    bundle = _parsed(path)
    shown = bundle.get("profile")
    if shown is None:
        return None
    if bundle.get("profile_digest") != _digest(shown):
        raise _damaged(path, "its profile was edited: the digest does not fit")
    try:
        return Profile.model_validate(shown)
    except ValidationError as error:
        raise _damaged(path, f"its profile is not legal: {problem_of(error)}") from error


def take_in(registry: Registry, where: Home, path: Path) -> tuple[RunRecord, Saved]:
    """Take a bundle into the registry, and its profile into the run's folder.

    Raises:
        BadParameter: there is no such file, or it is no bundle at all.
        StoreError: the bundle cannot be read, or the run is stored with another content.
    """
    profile = read_profile(path)
    record, saved = import_bundle(registry, path)
    if profile is not None:
        profile_store.keep(where, record.run_id, profile)
    return record, saved


def _parsed(path: Path) -> dict[str, Any]:
    if path.suffix == JOURNAL_SUFFIX and path.is_file():
        raise BadParameter(
            f"{path} is the journal of a run, not its bundle",
            cure="export the run first, where it was measured: levergate export RUN FILE",
        )
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadParameter(
            f"cannot read the bundle {path}: {error.strerror}", cure="check the path"
        ) from error
    try:
        bundle = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        if not _looks_like_one(path, raw):
            raise _no_bundle(path) from error
        raise _damaged(path, f"it is no JSON ({error})") from error
    if not isinstance(bundle, dict) or bundle.get("format") != FORMAT:
        raise _no_bundle(path)
    return bundle


def _looks_like_one(path: Path, raw: bytes) -> bool:
    """Whether what cannot be read was a bundle once: by its name, or by how it begins."""
    return path.name.endswith(SUFFIX) or f'"{FORMAT}"'.encode() in raw[:BEGINNING]


def _no_bundle(path: Path) -> BadParameter:
    return BadParameter(
        f"{path} is no evidence bundle",
        cure=f"give a file that 'levergate export' wrote (*{SUFFIX})",
    )


def _damaged(path: Path, why: str) -> StoreError:
    return StoreError(
        f"the bundle {path} is damaged: {why}", cure="export the run again where it was measured"
    )


def _digest(content: object) -> str:
    """SHA-256 of the canonical JSON: sorted keys, no spaces."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
