"""Stacks on disk: a folder each below ``stacks`` of the home, and the bundle of a measured one."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from experiments.files import write_atomically
from experiments.home import Home, make_folder
from experiments.values import SCHEMA_VERSION, problem_of
from levers.errors import StoreError, UnknownName, UsageError

if TYPE_CHECKING:  # to look for an id, which every show does, builds no record
    from experiments.stack.records import StackRecord

FOLDER = "stacks"
"""Below the home: apart from the runs, since a stack is no verdict."""

HEAD, RECORD, MIRRORED = "stack.json", "record.json", "mirrored.json"
FORMAT = "levergate-stack-bundle"
SUFFIX = ".stack.levergate.json"
BEGINNING = 200
"""Characters of a file that hold a bundle's format, which is its first field."""


def ids(home: Home) -> list[str]:
    """The ids of the stacks on disk, oldest first."""
    return sorted(path.parent.name for path in (home.root / FOLDER).glob(f"*/{HEAD}"))


def find(home: Home, stack_id: str) -> Path:
    """The folder of a stack, by its id or an unambiguous beginning of it.

    Raises:
        UnknownName: there is none.
        UsageError: the beginning fits several.
    """
    known = ids(home)
    fits = [name for name in known if stack_id and name.startswith(stack_id)]
    if len(fits) == 1 or stack_id in fits:
        return home.root / FOLDER / (stack_id if stack_id in fits else fits[0])
    if fits:
        raise UsageError(
            f"stack {stack_id!r} fits {len(fits)} stacks", cure=f"give more: {', '.join(fits)}"
        )
    raise UnknownName("stack", stack_id, known)


def known(home: Home, stack_id: str) -> bool:
    """Whether the beginning of an id fits a stack; runs and stacks share one kind of id."""
    return any(name.startswith(stack_id) for name in ids(home)) if stack_id else False


def begin(folder: Path, head: StackRecord) -> None:
    """Write the record before the first sample."""
    write_atomically(folder / HEAD, head.model_dump_json())


def load(folder: Path) -> StackRecord:
    """The measured record of a stack, or else its head.

    Raises:
        StoreError: it cannot be read, or is not of this version.
    """
    from experiments.stack.records import StackRecord

    path = folder / RECORD if (folder / RECORD).is_file() else folder / HEAD
    try:
        return StackRecord.model_validate_json(path.read_bytes())
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        raise StoreError(
            f"{path} is no stack of this version: {problem_of(error)}",
            cure="read it with the version of levergate that wrote it",
        ) from error


def reread(home: Home, stack_id: str) -> StackRecord:
    """A stored stack by its id or a beginning of it; one without its last word was interrupted.

    Raises:
        UnknownName: there is none.
        StoreError: it cannot be read.
    """
    record = load(find(home, stack_id))
    changes = {"status": "interrupted"} if record.status == "running" else {}
    return record.model_copy(update=changes)


def save(folder: Path, record: StackRecord) -> None:
    """Write the record and its bundle, each whole or not at all."""
    write_atomically(folder / RECORD, record.model_dump_json())
    write_atomically(folder / bundle_name(record), dump(record))


def note_mirrored(folder: Path, record: StackRecord, uri: str) -> None:
    """Write down that MLflow at ``uri`` (empty: the store in the home) holds the record."""
    write_atomically(folder / MIRRORED, json.dumps({uri: record.content_digest()}))


def is_mirrored(folder: Path, record: StackRecord, uri: str) -> bool:
    """Whether MLflow at ``uri`` is known to hold this record as it is now."""
    try:
        noted = json.loads((folder / MIRRORED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(noted, dict) and noted.get(uri) == record.content_digest()


def bundle_name(record: StackRecord) -> str:
    """The file name of a stack's bundle."""
    return f"{record.stack_id}{SUFFIX}"


def dump(record: StackRecord) -> str:
    """The bundle as text: the record and a digest of it, which finds damage and careless edits."""
    content = json.loads(record.model_dump_json())
    bundle = {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "stack_id": record.stack_id,
        "digest": _digest(content),
        "record": content,
    }
    return json.dumps(bundle, indent=1, ensure_ascii=False) + "\n"


def export(record: StackRecord, path: Path) -> Path:
    """Write the bundle of a stack to a file, or under its usual name into a folder.

    Returns:
        The file that was written.

    Raises:
        StoreError: the disk is full or read-only.
    """
    target = path / bundle_name(record) if path.is_dir() else path
    make_folder(target.parent)
    write_atomically(target, dump(record))
    return target


def is_bundle(path: Path) -> bool:
    """Whether a file begins as a stack's bundle does; one that cannot be read does not."""
    try:
        with path.open(encoding="utf-8") as file:
            return f'"{FORMAT}"' in file.read(BEGINNING)
    except (OSError, UnicodeDecodeError):
        return False


def take_in(home: Home, path: Path) -> tuple[StackRecord, bool]:
    """Store the stack of a bundle; also whether it was new here. Twice changes nothing.

    Raises:
        StoreError: the bundle cannot be used, or another record of that stack is here.
    """
    record = read_bundle(path)
    folder = make_folder(home.root / FOLDER / record.stack_id)
    if (folder / HEAD).is_file():
        if load(folder) != record:
            raise StoreError(
                f"stack {record.stack_id} is here with another content than in {path}",
                cure=f"look at both; the one here is in {folder}",
            )
        return record, False
    begin(folder, record)
    save(folder, record)
    return record, True


def read_bundle(path: Path) -> StackRecord:
    """The stack in a bundle.

    Raises:
        StoreError: it cannot be read, is damaged or edited, or from a newer version.
    """
    from experiments.stack.records import StackRecord

    try:
        bundle = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot read the stack bundle {path}: {error}") from error
    if not isinstance(bundle, dict) or bundle.get("format") != FORMAT:
        raise StoreError(f"{path} is no stack bundle", cure=f"give a file *{SUFFIX}")
    if int(bundle.get("schema_version", 0)) > SCHEMA_VERSION:
        raise StoreError(f"{path} is of a newer levergate", cure="upgrade levergate")
    if _digest(bundle.get("record")) != bundle.get("digest"):
        raise StoreError(
            f"the stack bundle {path} was edited or damaged: its digest does not fit",
            cure="take it again from where it was measured",
        )
    try:
        return StackRecord.model_validate_json(json.dumps(bundle["record"]))
    except ValidationError as error:
        raise StoreError(f"the stack bundle {path} is damaged: {problem_of(error)}") from error


def _digest(content: object) -> str:
    """SHA-256 of the canonical JSON: sorted keys, no spaces."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
