"""Who holds a device: a note of each holder, which its writer keeps locked while it lives.

A killed holder leaves its note behind. One that nobody has locked says nothing, so a process that
waits names those that live, and no other.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from experiments.home import make_folder
from levers.errors import StoreError


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a device."""

    pid: int
    host: str
    purpose: str
    since: str

    def __str__(self) -> str:
        return f"{self.purpose} (process {self.pid} on {self.host}, since {self.since})"


def for_all(folder: Path) -> Path:
    """A folder that is open to all users of the machine, as a temporary folder is."""
    if not folder.exists():
        make_folder(folder)
        with contextlib.suppress(PermissionError):
            folder.chmod(0o1777)
    return folder


@contextlib.contextmanager
def noted(lock: Path, who: Holder, *, shared: bool) -> Iterator[None]:
    """Say who holds a device, as long as it is held; called by its holder.

    Args:
        lock: the device's lock file.
        who: the holder.
        shared: whether others may hold it, too; each then has a note of its own.

    Raises:
        StoreError: the note cannot be written.
    """
    if not shared:
        _clear(_beside(lock))
    note = _beside(lock) / f"{who.pid}-{secrets.token_hex(4)}.holder" if shared else _alone(lock)
    try:
        if shared:
            for_all(note.parent)
        handle = os.open(note, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _unwritten(note, error) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)  # a reader has it for an instant at most
            os.ftruncate(handle, 0)
            os.write(handle, json.dumps(asdict(who)).encode())
        except OSError as error:
            raise _unwritten(note, error) from error
        yield
    finally:
        note.unlink(missing_ok=True)
        os.close(handle)


def holding(lock: Path) -> tuple[Holder, ...]:
    """The living holders of a device, the longest first; one that just writes its note is left out.

    Args:
        lock: the device's lock file.
    """
    notes = [_alone(lock), *_notes(_beside(lock))]
    found = (who for note in notes if (who := _read(note)) is not None)
    return tuple(sorted(found, key=lambda who: who.since))


def _alone(lock: Path) -> Path:
    return lock.with_suffix(".holder")


def _beside(lock: Path) -> Path:
    """The folder of the notes of those that share a device."""
    return lock.with_suffix(".holders")


def _notes(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _clear(folder: Path) -> None:
    """Remove what killed holders left: who holds the device alone knows that no other one lives."""
    for note in _notes(folder):
        with contextlib.suppress(OSError):
            note.unlink()


def _read(note: Path) -> Holder | None:
    """What a note says whose writer lives."""
    try:
        with note.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return Holder(**json.loads(file.read()))
    except (OSError, ValueError, TypeError):
        return None
    return None


def _unwritten(note: Path, error: OSError) -> StoreError:
    return StoreError(
        f"cannot write {note}: {error.strerror}",
        cure="free space there or set LEVERGATE_LOCKS to another local folder",
    )
