"""Which op cases run under the sanitizers: a few of each lever's, spread evenly over all of them.

Under the sanitizers a case takes many times as long as alone, and what they look for (an access
beyond a tensor, a race, a value never written) hangs on the shapes more than on the values. So each
lever gives at most :data:`MOST_CASES`. A lever that stands for several names its cases ``member:
case``; its members, which have comparisons of their own, share :data:`MOST_OF_A_SET` evenly.
"""

from __future__ import annotations

from collections.abc import Sequence

from levers import catalog
from levers.base import OpCase

MOST_CASES = 12
"""Cases of one lever that run under each tool."""


FEWEST_CASES = 2
"""Of each member of a large set: its first and its last."""

MOST_OF_A_SET = 24
"""Cases of all members of a set together. Of 36 the nine training levers' set got two tools of four
through on an H200; each member's own comparison takes twelve of its cases."""


def chosen(cases: Sequence[OpCase]) -> tuple[OpCase, ...]:
    """At most so many of each lever's cases, in their order; always the same ones."""
    heads = [case.name.partition(": ")[0] for case in cases]
    members = {entry.name for entry in catalog.named(set(heads))}
    groups: dict[str, list[OpCase]] = {}
    for head, case in zip(heads, cases, strict=True):
        groups.setdefault(head if head in members else "", []).append(case)
    most = min(MOST_CASES, max(FEWEST_CASES, MOST_OF_A_SET // max(1, len(groups))))
    return tuple(case for group in groups.values() for case in _spread(group, most))


def _spread(cases: Sequence[OpCase], most: int) -> Sequence[OpCase]:
    """Evenly spaced cases, the first and the last among them."""
    if len(cases) <= most:
        return cases
    return [cases[round(k * (len(cases) - 1) / (most - 1))] for k in range(most)]
