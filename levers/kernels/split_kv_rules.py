"""Split rules that wrap the rule they find: for another backend, and with a cap (torch-free).

A rule maps a :class:`DecodeShape` to a split count. A shape says whose kernel is launched, so that
rules may be wrapped in either order: the one of a backend names it in the shape that it hands down
and, for a rule around it, in ``backend``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from levers.kernels.split_heuristic import DecodeShape, capped_splits
from levers.kernels.tuned_splits import tuned_splits

Rule = Callable[[DecodeShape], int]

TUNED = "tuned"
"""The setting that takes the count from a measured table."""


def chosen_splits(shape: DecodeShape, setting: str, splits: int, device: str) -> int:
    """The split count at a setting of the cap, ``tuned`` among them.

    Args:
        shape: the launch.
        setting: as :func:`capped_splits` takes it, or ``tuned``.
        splits: what the rule below has chosen.
        device: the device's name, for ``tuned``.

    Raises:
        BadParameter: ``tuned`` where nothing was measured.
        ValueError: the setting is none of these.
    """
    if setting == TUNED:
        return tuned_splits(shape, splits, device)
    return capped_splits(shape, setting, splits)


class BackendRule:
    """The rule that it finds, asked for another backend's kernel."""

    def __init__(self, found: Rule, backend: str) -> None:
        self._found, self.backend = found, backend

    def __call__(self, shape: DecodeShape) -> int:
        """What the found rule says for this backend."""
        return self._found(replace(shape, backend=self.backend))


class CappedRule:
    """The rule that it finds, and a setting of the cap over it."""

    def __init__(self, found: Rule, setting: str, device: Callable[[], str]) -> None:
        self._found, self._setting, self._device = found, setting, device
        self.backend: str = getattr(found, "backend", "")

    def __call__(self, shape: DecodeShape) -> int:
        """The count after the cap."""
        splits = self._found(shape)
        known = replace(shape, backend=shape.backend or self.backend)
        device = self._device() if self._setting == TUNED else ""
        return chosen_splits(known, self._setting, splits, device)
