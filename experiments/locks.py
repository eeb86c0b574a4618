"""One lock per device, so that two comparisons on one device wait for each other.

The lock is advisory: a process that never takes it is seen by the telemetry, not here. It is held
through ``flock`` on a local disk, so a killed holder's lock is free at once and is never stale; the
note beside it only says who holds it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import filelock

from experiments.home import make_folder
from levers.errors import LevergateError, StoreError

POLL_S = 0.25
"""How often a waiting process tries again: short against a run, long against the cost of a try."""

REMIND_S = 30.0
"""How often a waiting process says again whom it waits for."""


class DeviceBusy(LevergateError):
    """The device's lock was not free within the time that the caller wanted to wait."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a device."""

    pid: int
    host: str
    purpose: str
    since: str

    def __str__(self) -> str:
        return f"{self.purpose} (process {self.pid} on {self.host}, since {self.since})"


def device_lock_path(folder: Path, device_uuid: str) -> Path:
    """The lock file of a device; the CPU of a host counts as one device."""
    return folder / f"{device_uuid.replace('/', '_')}.lock"


@contextlib.contextmanager
def device(
    folder: Path,
    device_uuid: str,
    purpose: str,
    *,
    now: str,
    wait_s: float | None = None,
    on_wait: Callable[[str], None] = lambda _: None,
) -> Iterator[None]:
    """Hold a device; wait in line for it, and say whom one waits for.

    Args:
        folder: the machine's lock folder, on a local disk.
        device_uuid: the GPU's UUID, or ``cpu-<host>``.
        purpose: shown to those who wait, such as ``ab fa2_nsplits_cap``.
        now: ISO time of the request, shown to those who wait.
        wait_s: how long to wait, in seconds; None waits for ever.
        on_wait: called with a text when the wait begins and every :data:`REMIND_S`.

    Raises:
        DeviceBusy: the lock was not free within ``wait_s``.
        StoreError: the lock file cannot be written.
    """
    path = device_lock_path(_shared(folder), device_uuid)
    note = path.with_suffix(".holder")
    lock = filelock.FileLock(path, mode=0o666)
    _acquire(lock, note, wait_s, on_wait)
    try:
        _write_note(note, Holder(os.getpid(), socket.gethostname(), purpose, now))
        yield
    finally:
        note.unlink(missing_ok=True)
        lock.release()


@contextlib.contextmanager
def devices(
    folder: Path,
    uuids: Sequence[str],
    purpose: str,
    *,
    now: str,
    wait_s: float | None = None,
    on_wait: Callable[[str], None] = lambda _: None,
) -> Iterator[None]:
    """Hold several devices, taken in one order by everybody, so that no two wait for each other.

    Raises:
        DeviceBusy: one was not free within ``wait_s``; none is then held.
        StoreError: a lock file cannot be written.
    """
    with contextlib.ExitStack() as held:
        for uuid in sorted(set(uuids)):
            held.enter_context(
                device(folder, uuid, purpose, now=now, wait_s=wait_s, on_wait=on_wait)
            )
        yield


def holder(note: Path) -> Holder | None:
    """Who holds the device by its note; None where there is none or it is being written."""
    try:
        return Holder(**json.loads(note.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _shared(folder: Path) -> Path:
    """The lock folder, open to all users of the machine, as a temporary folder is."""
    if not folder.exists():
        make_folder(folder)
        with contextlib.suppress(PermissionError):
            folder.chmod(0o1777)
    return folder


def _write_note(note: Path, who: Holder) -> None:
    try:
        note.write_text(json.dumps(asdict(who)))
    except OSError as error:
        raise StoreError(
            f"cannot write {note}: {error.strerror}",
            cure="free space there or set LEVERGATE_LOCKS to another local folder",
        ) from error


def _acquire(
    lock: filelock.BaseFileLock,
    note: Path,
    wait_s: float | None,
    on_wait: Callable[[str], None],
) -> None:
    start = time.monotonic()
    reminded = -REMIND_S
    while True:
        try:
            lock.acquire(blocking=False)
            return
        except filelock.Timeout:
            waited = time.monotonic() - start
        except OSError as error:
            raise StoreError(
                f"cannot lock {lock.lock_file}: {error.strerror}",
                cure="set LEVERGATE_LOCKS to a local folder that can be written to",
            ) from error
        who = holder(note) or "another process"
        if wait_s is not None and waited >= wait_s:
            raise DeviceBusy(
                f"the device is held by {who}; waited {waited:.0f} s",
                cure="wait for it to end, or take another device with --device",
            )
        if waited - reminded >= REMIND_S:
            reminded = waited
            on_wait(f"waiting for the device, which is held by {who}")
        time.sleep(POLL_S)
