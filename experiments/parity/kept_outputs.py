"""Decoded streams on disk, found again by the digest of all that a process depends on.

Levers of one campaign are held against the same reference: its streams, and those of fp64, are the
longest work of the token check and the same in each. So a process's streams are kept under the key
of its task (workload, parameters with the model's digest, seed, device, what it was asked, which of
several equal processes) with the levers that are on in it, their code, the code of battery and
workloads, the variables and the stack.

A lever at ``off`` is none as soon as check 9, ``rollback``, has held it against its absence (by
digests, which are never kept). Until then what its process decodes is its own: found again by the
same lever, and by no other one. A check that does not pass forgets what it used; where some of that
was found, it is made again at once, so that nobody fails by what another comparison decoded.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path

from experiments.files import write_atomically
from experiments.parity.cache import ParityCache
from experiments.parity_records import CheckResult
from experiments.tasks import Outputs, Task
from experiments.values import Value
from levers.base import OFF
from levers.errors import StoreError

FOLDER = "streams"
"""Below the folder of the kept results."""

KEPT = ("tokens", "truth")
"""What may be asked of a session and is kept. Gaps belong to the streams of one candidate."""

VOUCHES = "rollback"
"""The check that says whether a lever at ``off`` is none."""

UNUSED_S = 14 * 86400.0
"""After this time unused a file goes: 184 streams of 128 tokens are about 130 kB, and each change
of the code leaves its own."""


class Kept(Value):
    """A file: what a process left, and its digest."""

    digest: str
    outputs: Outputs


def _read(path: Path) -> Outputs | None:
    """The streams of a file; None where there is none, or none as it was written."""
    try:
        kept = Kept.model_validate_json(path.read_bytes())
        path.touch()
    except (OSError, ValueError):
        return None
    whole = kept.outputs.streams and kept.outputs.content_digest() == kept.digest
    return kept.outputs if whole else None


class KeptOutputs:
    """The streams beside one folder of kept results."""

    def __init__(self, cache: ParityCache) -> None:
        self._cache = cache
        self._folder = cache.folder / FOLDER
        self._used: set[str] = set()
        self._owned: dict[str, str] = {}
        self._vouched = False
        self._cleared = False

    def key(self, task: Task, *, own: bool = False) -> str:
        """The digest that names what a task leaves; empty where that is never kept.

        Args:
            task: what is asked of which process.
            own: whether a lever at ``off`` counts, too.
        """
        if task.kind != "outputs" or task.arguments.get("want") not in KEPT:
            return ""
        there = tuple(one for one in task.levers if own or one.setting != OFF)
        bound = self._cache.bound(tuple(one.lever for one in there))
        if bound is None:
            return ""
        same = task.model_copy(update={"arm": "ref", "levers": there, "subject": None})
        parts = [same.model_dump_json(), *bound]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def _keys(self, task: Task) -> list[str]:
        """Under which its streams may be found: those that all share first."""
        both = (self.key(task), self.key(task, own=True))
        return [key for key in dict.fromkeys(both) if key]

    def has(self, task: Task) -> bool:
        """Whether the task's streams are kept."""
        return any(self._path(key).is_file() for key in self._keys(task))

    def get(self, task: Task) -> Outputs | None:
        """The kept streams; None where there are none or they cannot be read."""
        for key in self._keys(task):
            found = _read(self._path(key))
            if found is not None:
                self._took(task, key)
                return found
        return None

    def put(self, task: Task, outputs: Outputs) -> None:
        """Keep the streams of a process that ended well; without room it is just not kept."""
        key = self.key(task, own=not self._vouched)
        if not key or not outputs.streams or self._cache.edited():
            return
        with contextlib.suppress(OSError, StoreError):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._clear()
            kept = Kept(digest=outputs.content_digest(), outputs=outputs)
            write_atomically(self._path(key), kept.model_dump_json())
            self._took(task, key)

    def _took(self, task: Task, key: str) -> None:
        self._used.add(key)
        shared = self.key(task)
        if shared and shared != key:
            self._owned[key] = shared

    def vouched(self) -> None:
        """The lever at ``off`` is as good as none: what it decoded so far is for all."""
        self._vouched = True
        for own, shared in self._owned.items():
            with contextlib.suppress(OSError):
                self._path(own).replace(self._path(shared))
        self._owned.clear()

    def settled(self, *, passed: bool) -> None:
        """A check is through; what it used is forgotten unless it passed."""
        if not passed:
            for key in self._used:
                self._owned.pop(key, None)
                with contextlib.suppress(OSError):
                    self._path(key).unlink()
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

    def made(self, check: Callable[[], CheckResult]) -> CheckResult:
        """What a check comes to; one that did not pass with what was found is made again without.

        Raises:
            ProcessFailed: a process failed.
        """
        result = check()
        if self._found and result.status not in ("passed", "not-run"):
            self.settled(result)
            self._memory.clear()
            result = check()
        return self.settled(result)

    def settled(self, check: CheckResult) -> CheckResult:
        """A check that is through, which says what it found again; one that failed forgets it."""
        if self._kept is not None:
            self._kept.settled(passed=check.status == "passed")
            if (check.name, check.status) == (VOUCHES, "passed"):
                self._kept.vouched()
        found, self._found = self._found, 0
        if not found:
            return check
        said = f"streams of {found} processes as an earlier comparison decoded them"
        return check.model_copy(update={"detail": "; ".join(filter(None, (check.detail, said)))})
