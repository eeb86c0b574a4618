"""Text of the command line to values, each mistake with its cure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from levers.errors import UsageError

SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
PART = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h)?")


def budget_seconds(text: str) -> float:
    """A time: ``90``, ``90s``, ``3m``, ``1h30m``.

    Raises:
        UsageError: it is no time, or not above zero.
    """
    compact = "".join(text.split()).lower()
    parts = list(PART.finditer(compact))
    whole = "".join(part.group(0) for part in parts) == compact
    seconds = sum(float(part[1]) * SECONDS[part[2] or "s"] for part in parts)
    if not compact or not whole or seconds <= 0:
        raise UsageError(f"--budget {text!r} is no time", cure="write 90s, 3m or 1h30m")
    return seconds


def effect_ratio(text: str) -> float:
    """An effect in percent as a log ratio, as policies state theirs: ``1%`` is 0.01.

    Raises:
        UsageError: it is no percentage, or zero.
    """
    found = re.fullmatch(r"\s*([+-]?\d+(?:\.\d+)?)\s*%\s*", text)
    if found is None or float(found[1]) == 0:
        raise UsageError(f"--effect {text!r} is no percentage", cure="write 1% or 2.5%")
    return float(found[1]) / 100


def settings(pairs: Iterable[str], **named: str | None) -> dict[str, str]:
    """The ``--set key=value`` options, with those that have an option of their own.

    Raises:
        UsageError: an option without ``=``, or a key given twice with different values.
    """
    found: dict[str, str] = {}
    for text in pairs:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {text!r} has no key or no value", cure="write --set key=value")
        _put(found, key.strip(), value.strip())
    for key, given in named.items():
        if given is not None:
            _put(found, key, given)
    return found


def _put(found: dict[str, str], key: str, value: str) -> None:
    if found.setdefault(key, value) != value:
        raise UsageError(f"{key} is given as {found[key]!r} and as {value!r}", cure="give it once")
