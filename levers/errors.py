"""The exceptions that levergate raises for a mistake; an outcome is a value and never one of these.

LevergateError
├── UsageError              the request is wrong (exit code 2)
│   ├── UnknownName         no such lever, setting, workload, axis, run
│   ├── BadSetting          a lever setting out of its range
│   ├── BadParameter        a workload parameter, device or model folder that cannot be used
│   └── LeverConflict       two levers claim one site
├── NotRestored             a hook did not put back what it found
├── InputsChanged           a process read other weights than those with which its run began
├── DefectiveLever          a hook raised where no arm's work ran: its cases, its witness
├── BrokenLever             a plugin that did not import was asked for
└── StoreError              the registry, the spool or a bundle cannot be read or written
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LevergateError(Exception):
    """Base of all levergate mistakes: what was asked, what was found, where, and the cure."""

    def __init__(self, message: str, *, cure: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.cure = cure

    def __str__(self) -> str:
        return f"{self.message}; {self.cure}" if self.cure else self.message


class UsageError(LevergateError):
    """The request itself is wrong; nothing was run and nothing was lost."""


class UnknownName(UsageError):
    """A name that is not known, with the closest one that is."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
        cure = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names) or 'none'}"
        super().__init__(f"no {kind} {name!r}", cure=cure)
        self.kind, self.name, self.known = kind, name, tuple(names)


class BadSetting(UsageError):
    """A lever setting that the lever does not take."""


class BadParameter(UsageError):
    """A workload parameter, a device or a model folder that cannot be used."""


class LeverConflict(UsageError):
    """Two levers claim one site and neither supersedes or composes with the other."""


class NotRestored(LevergateError):
    """A disable hook left something other than what enable had found."""


class InputsChanged(LevergateError):
    """A process read something else than its run began with: no arm's fault, and no comparison."""


class DefectiveLever(LevergateError):
    """A hook that only states or reads something raised: no arm's fault, but the lever's."""


class OtherWork(LevergateError):
    """What stands at a site does other work than it was asked for, so that no time of it counts."""


class BrokenLever(LevergateError):
    """A plugin that did not import was asked for; says what its last words were."""


class StoreError(LevergateError):
    """The registry, the spool or a bundle cannot be read or written."""
