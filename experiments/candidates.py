"""The text of ``--cand``: one setting, several with commas, ranges of whole numbers, or none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from levers.errors import BadSetting, UsageError

if TYPE_CHECKING:
    from experiments.requests import AbRequest
    from levers.base import Lever

AUTO = "auto"
"""The setting by which a lever chooses itself, where it has one."""

RANGE = re.compile(r"(\d+)\.\.(\d+)")

MOST = 64
"""Settings in one run; more would spend the whole error on the first look of each."""


def candidates(text: str) -> tuple[str, ...]:
    """The settings that ``auto,1,2`` or ``auto,1..16`` names, each once, in order.

    Raises:
        UsageError: an empty part, a range that does not rise, or too many settings.
    """
    found: list[str] = []
    for part in (one.strip() for one in text.split(",")):
        if not part:
            raise UsageError(f"--cand {text!r} has an empty part", cure="write --cand auto,1,2")
        found += _expanded(part)
    distinct = tuple(dict.fromkeys(found))
    if len(distinct) > MOST:
        raise UsageError(f"--cand names {len(distinct)} settings", cure=f"give at most {MOST}")
    return distinct


def usual(lever: Lever) -> str:
    """The setting that is measured where none is named: ``auto``, or the only one beside ``off``.

    Raises:
        BadSetting: the lever has several, none of them ``auto``; the message lists them.
    """
    from levers.base import OFF

    settings = lever.settings
    others = [name for name in settings.names if name != OFF]
    if AUTO in others:
        return AUTO
    if len(others) == 1 and settings.minimum is None:
        return others[0]
    raise BadSetting(
        f"{lever.name} has several settings, and none is taken without being named",
        cure=f"give --cand one or several of {settings.describe()}",
    )


def _expanded(part: str) -> list[str]:
    both = RANGE.fullmatch(part)
    if both is None:
        return [part]
    low, high = int(both[1]), int(both[2])
    if low >= high:
        raise UsageError(f"the range {part} does not rise", cure="write --cand 1..16")
    return [str(number) for number in range(low, min(high, low + MOST) + 1)]


def settings_of(request: AbRequest, settings: Sequence[str]) -> tuple[str, ...]:
    """The candidates in canonical form, each once, in the order of the request; none is the usual.

    Raises:
        UnknownName: there is no such lever.
        BadSetting: one is out of range, or is the reference, or none is named nor usual.
    """
    from levers import catalog

    lever = catalog.get(request.lever)
    ref = lever.settings.check(lever.name, request.ref)
    found = tuple(
        dict.fromkeys(lever.settings.check(lever.name, one) for one in settings or (usual(lever),))
    )
    if ref in found:
        raise BadSetting(
            f"{lever.name}={ref} is the reference and among the candidates",
            cure="leave it out of --cand: the reference runs in every round",
        )
    return found
