from __future__ import annotations

from typing import Any

import pytest

from experiments.ranks.agreement import SHOWN, disagreements
from experiments.ranks.report import RankReport
from experiments.tasks import Measurement, TaskResult


def report(rank: int, agree: dict[str, str] | None = None, **changes: Any) -> RankReport:
    shard = changes.pop("shard", f"shard {rank}")
    return RankReport(
        rank=rank,
        result=TaskResult(**changes),
        must_agree=agree or {"torch": "2", "weights after the steps: w": "aa"},
        must_differ={"shard of the batch": shard},
        ended=float(rank),
    )


def measured(steps: int) -> Measurement:
    return Measurement(values={"a": 1.0}, inputs_digest="x", outputs_count=steps)


def test_ranks_with_equal_means_and_own_shards_agree() -> None:
    assert disagreements([report(0), report(1), report(2)]) == ()


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (report(1, {"torch": "3", "weights after the steps: w": "aa"}), "torch: rank 1 has 3 "),
        (report(1, {"torch": "2"}), "weights after the steps: w: rank 1 has nothing where "),
        (report(1, shard="shard 0"), "shard of the batch: ranks 0 and 1 have the same"),
        (report(1, facts={"autotune.k": "a"}), "autotuned k: rank 1 has a where rank 0 has"),
        (report(1, plans={"tok": "p"}), "plan of tok: rank 1 has p where rank 0 has nothing"),
        (report(1, launches={"s": 3}), "launches of s: rank 1 has 3 where rank 0 has nothing"),
        (report(1, measurement=measured(4)), "number of steps: rank 1 has 4 where rank 0 has"),
    ],
)
def test_what_differs_is_named_with_both_values(other: RankReport, text: str) -> None:
    assert disagreements([report(0), other])[0].startswith(text)


def test_a_rank_in_the_middle_is_found_and_named() -> None:
    odd = report(2, {"torch": "2", "weights after the steps: w": "bb"})
    found = disagreements([report(0), report(1), odd, report(3)])
    assert found == ("weights after the steps: w: rank 2 has bb where rank 0 has aa",)


def test_many_differences_are_counted_and_the_first_are_shown() -> None:
    one = report(0, {f"w{i}": "a" for i in range(600)})
    other = report(1, {f"w{i}": "b" for i in range(600)})
    found = disagreements([one, other])
    assert len(found) == SHOWN + 1
    assert found[-1] == f"and {600 - SHOWN} more"
