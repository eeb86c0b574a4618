"""How an oracle ran, as its samples say it: version, cache, graphs, lengths."""

from __future__ import annotations

from collections.abc import Iterable

from experiments.records import Sample
from experiments.values import Scalar

ORACLE_MODE_FACT = "oracle_mode"
"""Name under which an oracle's sample says how it ran."""
ORACLE_PACKAGE_FACT = "oracle_package"
"""Name under which it says of which distribution it is, as in ``transformers 5.1.0``."""

PREFIX = "oracle_"
"""Beginning of the names of facts that an oracle's sample states of itself."""
ELSEWHERE = (ORACLE_MODE_FACT, ORACLE_PACKAGE_FACT, "oracle_log")
"""What stands elsewhere in a report, or differs in each process without meaning anything."""
MOST_TEXTS = 3


def oracle_ran(samples: Iterable[Sample]) -> str:
    """``version transformers 5.1.0, cache static, 344 positions``; empty without an oracle.

    A number that differs between processes is shown from the smallest to the largest.
    """
    found: dict[str, list[Scalar]] = {}
    for sample in samples:
        for name, value in sample.telemetry.items() if sample.arm == "oracle" else ():
            if name.startswith(PREFIX) and name not in ELSEWHERE and value not in (None, ""):
                found.setdefault(name.removeprefix(PREFIX).replace("_", " "), []).append(value)
    return "; ".join(f"{name} {_shown(values)}" for name, values in found.items())


def _shown(values: list[Scalar]) -> str:
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(numbers) == len(values):
        low, high = min(numbers), max(numbers)
        return _number(low) if low == high else f"{_number(low)} to {_number(high)}"
    texts = list(dict.fromkeys(map(str, values)))
    more = f" and {len(texts) - MOST_TEXTS} more" if len(texts) > MOST_TEXTS else ""
    return f"{' | '.join(texts[:MOST_TEXTS])}{more}"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
