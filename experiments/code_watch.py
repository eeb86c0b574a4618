"""Whether the code that measured processes load is still what it was when a sitting began.

Each process of a run must run the same code. So every file that it may load is known by its digest
from the start, and is looked at again after each process: what that process gave is then dropped,
and the run is invalid, whatever it would have said. A file that is new is none of them, and one
that is written again with the same content has not changed. An edit that is taken back while one
process runs is not seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from experiments.values import digest_of
from levers.errors import LevergateError

CODE_CHANGED = "code-changed"
"""The fault's reason code."""

MOST_NAMED = 3

Stamp = tuple[int, int, int]


class CodeChanged(LevergateError):
    """Code was edited while a run was at work; the message names the files."""


@dataclass(slots=True)
class CodeWatch:
    """The files of a sitting, as they were when it began.

    Attributes:
        files: what is watched, with the name under which each is reported.
    """

    files: dict[Path, str]
    _digests: dict[Path, str] = field(default_factory=dict)
    _stamps: dict[Path, Stamp] = field(default_factory=dict)

    @classmethod
    def of(cls, files: Iterable[tuple[str, Path]]) -> CodeWatch:
        """Begin to watch files, which are there."""
        watch = cls({})
        watch.add(files)
        return watch

    def add(self, files: Iterable[tuple[str, Path]]) -> None:
        """Watch more files, which are there; one that is watched stays as it was."""
        for name, path in files:
            if path not in self.files:
                self.files[path] = name
                self._stamps[path] = _stamp(path)
                self._digests[path] = digest_of(path.read_bytes())

    def look(self) -> None:
        """Refuse what has changed.

        Raises:
            CodeChanged: a file has another content, or is gone.
        """
        changed = [name for path, name in self.files.items() if self._differs(path)]
        if changed:
            more = f" and {len(changed) - MOST_NAMED} more" if len(changed) > MOST_NAMED else ""
            raise CodeChanged(
                f"{', '.join(changed[:MOST_NAMED])}{more} changed while it was at work",
                cure="run again and leave the code alone until it ends, or measure from a copy",
            )

    def _differs(self, path: Path) -> bool:
        try:
            stamp = _stamp(path)
            if stamp == self._stamps[path]:
                return False
            if digest_of(path.read_bytes()) != self._digests[path]:
                return True
        except OSError:
            return True
        self._stamps[path] = stamp
        return False


def _stamp(path: Path) -> Stamp:
    """What an edit changes, whatever it does to the file's times."""
    found = path.stat()
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino
