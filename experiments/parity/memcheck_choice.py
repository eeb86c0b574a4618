"""Which op cases run under the sanitizers: a few of each lever's, spread evenly over all of them.

Under the sanitizers a case takes many times as long as alone, and what they look for (an access
beyond a tensor, a race, a value never written) hangs on the shapes more than on the values. So each
lever gives at most :data:`MOST_CASES`. A lever that stands for several names its cases ``member:
case``, and then each member gives as many.
"""

from __future__ import annotations

from collections.abc import Sequence

from levers import catalog
from levers.base import OpCase

MOST_CASES = 12
"""Cases of one lever that run under each tool."""


def chosen(cases: Sequence[OpCase]) -> tuple[OpCase, ...]:
    """At most :data:`MOST_CASES` of each lever's cases, in their order; always the same ones."""
    heads = [case.name.partition(": ")[0] for case in cases]
    members = {entry.name for entry in catalog.named(set(heads))}
    groups: dict[str, list[OpCase]] = {}
    for head, case in zip(heads, cases, strict=True):
        groups.setdefault(head if head in members else "", []).append(case)
    return tuple(case for group in groups.values() for case in _spread(group))


def _spread(cases: Sequence[OpCase]) -> Sequence[OpCase]:
    """Evenly spaced cases, the first and the last among them."""
    if len(cases) <= MOST_CASES:
        return cases
    steps = MOST_CASES - 1
    return [cases[round(k * (len(cases) - 1) / steps)] for k in range(MOST_CASES)]
