"""One lock per device, so that two comparisons on one device wait for each other.

What is timed holds a device alone. What is not timed may share it with others of the kind, and with
nothing that is timed: a timing run waits until the last of them has gone.

The lock is advisory: a process that never takes it is seen by the telemetry, not here. It is held
through ``flock`` on a local disk, so a killed holder's lock is free at once and is never stale; the
notes beside it only say who holds it (:mod:`experiments.holders`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import filelock

from experiments import holders
from experiments.holders import Holder
from levers.errors import LevergateError, StoreError

POLL_S = 0.25
"""How often a waiting process tries again: short against a run, long against the cost of a try."""

REMIND_S = 30.0
"""How often a waiting process says again whom it waits for."""

MODE = 0o666
"""Of the lock files: every user of the machine takes them."""


class DeviceBusy(LevergateError):
    """The device's lock was not free within the time that the caller wanted to wait."""


def device_lock_path(folder: Path, device_uuid: str) -> Path:
    """The lock file of a device; the CPU of a host counts as one device."""
    return folder / f"{device_uuid.replace('/', '_')}.lock"


def holders_of(folder: Path, uuids: Sequence[str]) -> tuple[Holder, ...]:
    """Who holds any of some devices now, as far as they have said so."""
    paths = (device_lock_path(folder, uuid) for uuid in sorted(set(uuids)))
    return tuple(who for path in paths for who in holders.holding(path))


@contextlib.contextmanager
def device(
    folder: Path,
    device_uuid: str,
    purpose: str,
    *,
    now: str,
    shared: bool = False,
    wait_s: float | None = None,
    on_wait: Callable[[str], None] = lambda _: None,
) -> Iterator[None]:
    """Hold a device; wait in line for it, and say whom one waits for.

    Args:
        folder: the machine's lock folder, on a local disk.
        device_uuid: the GPU's UUID, or ``cpu-<host>``.
        purpose: shown to those who wait, such as ``ab fa2_nsplits_cap``.
        now: ISO time of the request, shown to those who wait.
        shared: for what is not timed: others that share the device may hold it at the same time.
        wait_s: how long to wait, in seconds; None waits for ever.
        on_wait: called with a text when the wait begins and every :data:`REMIND_S`.

    Raises:
        DeviceBusy: the lock was not free within ``wait_s``.
        StoreError: the lock file cannot be written.
    """
    path = device_lock_path(holders.for_all(folder), device_uuid)
    lock: _Lock = _Beside(path) if shared else _Alone(path)
    _acquire(lock, path, wait_s, on_wait)
    who = Holder(os.getpid(), socket.gethostname(), purpose, now)
    try:
        with holders.noted(path, who, shared=shared):
            yield
    finally:
        lock.release()


@contextlib.contextmanager
def devices(
    folder: Path,
    uuids: Sequence[str],
    purpose: str,
    *,
    now: str,
    shared: bool = False,
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
                device(
                    folder, uuid, purpose, now=now, shared=shared, wait_s=wait_s, on_wait=on_wait
                )
            )
        yield


class _Lock(Protocol):
    """One try at a time."""

    def acquire(self) -> bool:
        """Take it if it is free now."""

    def release(self) -> None:
        """Give it back."""


class _Alone:
    """The device for one holder."""

    def __init__(self, path: Path) -> None:
        self._lock = filelock.FileLock(path, mode=MODE)

    def acquire(self) -> bool:
        try:
            self._lock.acquire(blocking=False)
        except filelock.Timeout:
            return False
        return True

    def release(self) -> None:
        self._lock.release()


class _Beside:
    """The device for several holders: ``flock`` of the same file, shared."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle = -1

    def acquire(self) -> bool:
        handle = self._opened()
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), self._path.stat()):
                self._handle, handle = handle, -1
        except (BlockingIOError, FileNotFoundError):  # held, or removed by a holder that has gone
            return False
        finally:
            if handle >= 0:
                os.close(handle)
        return self._handle >= 0

    def release(self) -> None:
        os.close(self._handle)

    def _opened(self) -> int:
        with contextlib.suppress(FileNotFoundError):
            return os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE)
        with contextlib.suppress(PermissionError):
            os.fchmod(handle, MODE)
        return handle


def _acquire(lock: _Lock, path: Path, wait_s: float | None, on_wait: Callable[[str], None]) -> None:
    start = time.monotonic()
    reminded = -REMIND_S
    while True:
        try:
            if lock.acquire():
                return
        except OSError as error:
            raise StoreError(
                f"cannot lock {path}: {error.strerror}",
                cure="set LEVERGATE_LOCKS to a local folder that can be written to",
            ) from error
        waited = time.monotonic() - start
        who = " and ".join(map(str, holders.holding(path))) or "another process"
        if wait_s is not None and waited >= wait_s:
            raise DeviceBusy(
                f"the device is held by {who}; waited {waited:.0f} s",
                cure="wait for it to end, or take another device with --device",
            )
        if waited - reminded >= REMIND_S:
            reminded = waited
            on_wait(f"waiting for the device, which is held by {who}")
        time.sleep(POLL_S)
