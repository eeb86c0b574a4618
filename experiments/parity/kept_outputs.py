"""Decoded streams on disk, found again by the digest of all that a process depends on.

Levers of one campaign are held against the same reference: its streams, and those of fp64, are the
longest work of the token check and the same in each. So a process's streams are kept under the key
of its task (workload, parameters with the model's digest, seed, device, what it was asked, which of
several equal processes) with the levers that are on in it, their code, the code of battery and
workloads, the variables and the stack. A lever at ``off`` is none: check 9, ``rollback``, holds
that against its absence, and compares digests, which are never kept.

What a check used that did not pass is forgotten, so that it is decoded again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from pathlib import Path

from pydantic import ValidationError

from experiments.files import write_atomically
from experiments.parity.cache import ParityCache
from experiments.parity_records import CheckResult
from experiments.tasks import Outputs, Task
from levers.base import OFF
from levers.errors import StoreError

FOLDER = "streams"
"""Below the folder of the kept results."""

KEPT = ("tokens", "truth")
"""What may be asked of a session and is kept. Gaps belong to the streams of one candidate."""

UNUSED_S = 14 * 86400.0
"""After this time unused a file goes: 184 streams of 128 tokens are about 130 kB, and each change
of the code leaves its own."""


class KeptOutputs:
    """The streams beside one folder of kept results."""

    def __init__(self, cache: ParityCache) -> None:
        self._cache = cache
        self._folder = cache.folder / FOLDER
        self._used: set[str] = set()
        self._cleared = False

    def key(self, task: Task) -> str:
        """The digest that names what a task leaves; empty where that is never kept."""
        if task.kind != "outputs" or task.arguments.get("want") not in KEPT:
            return ""
        on = tuple(one for one in task.levers if one.setting != OFF)
        bound = self._cache.bound(tuple(one.lever for one in on))
        if bound is None:
            return ""
        same = task.model_copy(update={"arm": "ref", "levers": on, "subject": None})
        parts = [same.model_dump_json(), *bound]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def has(self, task: Task) -> bool:
        """Whether the task's streams are kept."""
        key = self.key(task)
        return bool(key) and self._path(key).is_file()

    def get(self, task: Task) -> Outputs | None:
        """The kept streams; None where there are none or they cannot be read."""
        key = self.key(task)
        if not key:
            return None
        try:
            found = Outputs.model_validate_json(self._path(key).read_text())
            self._path(key).touch()
        except (OSError, ValidationError):
            return None
        self._used.add(key)
        return found

    def put(self, task: Task, outputs: Outputs) -> None:
        """Keep the streams of a process that ended well; without room it is just not kept."""
        key = self.key(task)
        if not key or not outputs.streams or self._cache.edited():
            return
        with contextlib.suppress(OSError, StoreError):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._clear()
            write_atomically(self._path(key), outputs.model_dump_json())
            self._used.add(key)

    def settled(self, *, passed: bool) -> None:
        """A check is through; what it used is forgotten unless it passed."""
        if not passed:
            for key in self._used:
                self._path(key).unlink(missing_ok=True)
        self._used.clear()

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"

    def _clear(self) -> None:
        """Once a comparison: remove what nobody asked for in :data:`UNUSED_S`."""
        if self._cleared:
            return
        self._cleared = True
        oldest = time.time() - UNUSED_S
        for path in self._folder.glob("*.json"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < oldest:
                    path.unlink()


class Answered:
    """What processes of a comparison left, in memory, and what an earlier one kept."""

    def __init__(self, kept: KeptOutputs | None) -> None:
        self._kept = kept
        self._memory: dict[str, Outputs] = {}
        self._found = 0

    def get(self, task: Task) -> Outputs | None:
        """What the task would leave, if that is known."""
        key = task.content_digest()
        if key not in self._memory and self._kept is not None:
            kept = self._kept.get(task)
            if kept is not None:
                self._memory[key] = kept
                self._found += 1
        return self._memory.get(key)

    def put(self, task: Task, outputs: Outputs) -> None:
        """Know what a process left."""
        self._memory[task.content_digest()] = outputs
        if self._kept is not None:
            self._kept.put(task, outputs)

    def has(self, task: Task) -> bool:
        """Whether the task need not be run."""
        known = task.content_digest() in self._memory
        return known or (self._kept is not None and self._kept.has(task))

    def settled(self, check: CheckResult) -> CheckResult:
        """A check that is through, which says what it found again; one that failed forgets it."""
        if self._kept is not None:
            self._kept.settled(passed=check.status == "passed")
        found, self._found = self._found, 0
        if not found:
            return check
        said = f"streams of {found} processes as an earlier comparison decoded them"
        return check.model_copy(update={"detail": "; ".join(filter(None, (check.detail, said)))})
