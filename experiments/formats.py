"""Numbers as shown to a reader: one place, so that every report shows the same digits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

MINUS = "-"


def percent(log_ratio: float, *, decimals: int | None = None) -> str:
    """A log ratio as a signed percentage without its sign ``%``: 0.116 is ``+12.3``.

    Two decimals below 1 %, one above, so that a small effect is not rounded to nothing.
    """
    if math.isinf(log_ratio):
        return "+inf" if log_ratio > 0 else f"{MINUS}inf"
    value = math.expm1(log_ratio) * 100
    digits = _decimals(value) if decimals is None else decimals
    return f"{round(value, digits) + 0.0:+.{digits}f}"


def _decimals(value: float) -> int:
    return 1 if abs(value) >= 0.995 else 2


def effect(estimate: float, lower: float, upper: float) -> str:
    """An effect with its interval: ``+12.3 % [9.8, 14.9]``."""
    return f"{percent(estimate)} % {interval(estimate, lower, upper)}"


def interval(estimate: float, lower: float, upper: float) -> str:
    """An interval in percent with the digits of its estimate: ``[9.8, 14.9]``."""
    digits = _decimals(math.expm1(estimate) * 100)
    ends = (percent(end, decimals=digits).removeprefix("+") for end in (lower, upper))
    return f"[{', '.join(ends)}]"


def margin(log_ratio: float) -> str:
    """A margin or gain as policies state it (0.01 is 1 %), without a sign: ``1 %``."""
    return f"{log_ratio * 100:.3g} %"


def ratio(value: float, lower: float | None, upper: float | None) -> str:
    """A ratio to a target with its interval: ``1.020 [1.011, 1.030]``."""
    ends = "" if lower is None or upper is None else f" [{lower:.3f}, {upper:.3f}]"
    return f"{value:.3f}{ends}"


def quantity(value: float, unit: str) -> str:
    """A measured value with its unit: bytes in binary multiples, else four significant digits."""
    if unit in ("bytes", "byte", "B"):
        return size(value)
    digits = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:,.{min(digits, 6)}f}"
    return f"{text} {unit}".rstrip()


def size(count: float) -> str:
    """A number of bytes: ``2.63 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    return f"{count:.2f} TiB"


def duration(seconds: float) -> str:
    """A duration: ``42 s``, ``3 min 05 s``, ``1 h 20 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def share(value: float) -> str:
    """A share of 1 as a percentage: ``2.4 %``."""
    return f"{value * 100:.1f} %"


def day(moment: str) -> str:
    """An ISO moment to the minute: ``2026-11-29 16:20``."""
    try:
        return datetime.fromisoformat(moment).strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return moment


def count(number: int, noun: str) -> str:
    """``1 pair``, ``9 pairs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def shortened(text: str, most: int = 40) -> str:
    """A text of at most so many characters with both its ends: a command as a name in a table."""
    if len(text) <= most:
        return text
    tail = most // 3
    return f"{text[: most - tail - 5].rstrip()} ... {text[-tail:].lstrip()}"


def median(values: Sequence[float]) -> float:
    """The median of at least one value."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
