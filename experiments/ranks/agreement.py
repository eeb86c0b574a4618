"""Whether the ranks of one arm did the same work with the same means on different data (pure).

Data parallelism is only right where every rank holds the same weights after each step; a figure is
only comparable where every rank ran the same software, kernels and shapes. A difference makes the
run invalid: it is neither the candidate's speed nor its failure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from experiments.autotuned import winners
from experiments.ranks.report import RankReport

SHOWN = 3
"""Differences that are spelled out; the rest is counted."""


def disagreements(reports: Sequence[RankReport]) -> tuple[str, ...]:
    """What the ranks disagree on, each in one line; empty where they agree."""
    facts = [_facts(report) for report in reports]
    found = [
        *_different(reports, facts),
        *_shared(reports),
    ]
    if len(found) <= SHOWN:
        return tuple(found)
    return (*found[:SHOWN], f"and {len(found) - SHOWN} more")


def _facts(report: RankReport) -> Mapping[str, str]:
    """All that must be equal: what the rank named itself, and what its result shows."""
    result = report.result
    facts = dict(report.must_agree)
    facts |= {f"autotuned {kernel}": best for kernel, best in winners(result.facts).items()}
    facts |= {f"plan of {axis}": plan for axis, plan in result.plans.items()}
    facts |= {f"launches of {site}": str(count) for site, count in result.launches.items()}
    if result.measurement is not None:
        facts["number of steps"] = str(result.measurement.outputs_count)
    return facts


def _different(reports: Sequence[RankReport], facts: Sequence[Mapping[str, str]]) -> Iterator[str]:
    for name in dict.fromkeys(name for one in facts for name in one):
        first = facts[0].get(name, "nothing")
        for report, mine in zip(reports[1:], facts[1:], strict=True):
            other = mine.get(name, "nothing")
            if other != first:
                yield (
                    f"{name}: rank {report.rank} has {other} where rank {reports[0].rank} "
                    f"has {first}"
                )
                break


def _shared(reports: Sequence[RankReport]) -> Iterator[str]:
    """Two ranks on one shard would do the same work twice and call it two."""
    for name in dict.fromkeys(name for report in reports for name in report.must_differ):
        seen: dict[str, int] = {}
        for report in reports:
            value = report.must_differ.get(name, "nothing")
            if value in seen:
                yield f"{name}: ranks {seen[value]} and {report.rank} have the same, {value}"
                break
            seen[value] = report.rank
