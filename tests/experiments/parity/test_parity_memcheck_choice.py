"""Which op cases run under the sanitizers, and that the check says how many."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from benchmarks.whole_stack import together
from experiments import descendants
from experiments.parity import memcheck, op, sanitizer_tool
from experiments.parity.memcheck_choice import MOST_CASES, MOST_OF_A_SET, chosen
from experiments.parity.sanitizer_report import END, Report
from experiments.tasks import Task
from levers import catalog
from levers.base import OpCase


def _nothing(*_: object) -> tuple[()]:
    return ()


def cases(*names: str) -> tuple[OpCase, ...]:
    return tuple(OpCase(name, _nothing, _nothing, _nothing, _nothing, _nothing) for name in names)


def numbered(count: int, head: str = "") -> tuple[OpCase, ...]:
    return cases(*(f"{head}{k}" for k in range(count)))


def names(found: Sequence[OpCase]) -> list[str]:
    return [one.name for one in found]


@pytest.mark.parametrize("count", [1, 11, MOST_CASES])
def test_a_few_cases_are_all_taken(count: int) -> None:
    assert chosen(numbered(count)) == numbered(count)


@pytest.mark.parametrize("count", [13, 14, 23, 24, 96, 401])
def test_of_many_cases_twelve_are_taken_evenly_the_first_and_the_last_among_them(
    count: int,
) -> None:
    places = [int(name) for name in names(chosen(numbered(count)))]
    assert len(places) == MOST_CASES
    assert (places[0], places[-1]) == (0, count - 1)
    gaps = {after - before for before, after in pairwise(places)}
    assert min(gaps) >= 1
    assert max(gaps) - min(gaps) <= 1
    assert chosen(numbered(count)) == chosen(numbered(count))


def test_each_member_of_a_set_of_levers_gives_its_own_twelve() -> None:
    first, second = "fused_modulate: ", "segment_sum_broadcast: "
    found = names(chosen((*numbered(40, first), *numbered(5, second))))
    assert [name for name in found if name.startswith(second)] == [f"{second}{k}" for k in range(5)]
    mine = [name for name in found if name.startswith(first)]
    assert (len(mine), mine[0], mine[-1]) == (MOST_CASES, f"{first}0", f"{first}39")


def test_the_members_of_a_whole_stack_are_told_apart() -> None:
    members = ("fused_modulate", "segment_sum_broadcast")
    stated = together(*(f"{name}=on" for name in members)).op_cases("on", "cpu")
    taken = names(chosen(stated))
    for member in members:
        its = [name for name in names(stated) if name.startswith(f"{member}: ")]
        mine = [name for name in taken if name.startswith(f"{member}: ")]
        assert len(mine) == min(len(its), MOST_CASES)
        assert (mine[0], mine[-1]) == (its[0], its[-1])


def test_many_members_share_what_a_set_may_take() -> None:
    members = [entry.name for entry in catalog.listed()][:9]
    cases = [case for name in members for case in numbered(20, f"{name}: ")]
    taken = names(chosen(tuple(cases)))
    each = MOST_OF_A_SET // len(members)
    assert len(taken) == each * len(members)
    for name in members:
        mine = [one for one in taken if one.startswith(f"{name}: ")]
        assert (len(mine), mine[0], mine[-1]) == (each, f"{name}: 0", f"{name}: 19")


def test_a_colon_in_the_names_of_one_levers_cases_raises_no_bound() -> None:
    assert len(chosen((*numbered(20, "bf16: "), *numbered(20, "fp32: ")))) == MOST_CASES


def test_the_check_says_how_many_of_how_many_cases_it_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clean = Report(0, f"{END}\n========= ERROR SUMMARY: 0 errors\n")
    write = "========= Invalid __global__ write of size 4 bytes\n"
    planted = Report(88, f"{write}{END}\n========= ERROR SUMMARY: 1 errors\n")
    monkeypatch.setattr(sanitizer_tool, "find_sanitizer", lambda: "compute-sanitizer")
    monkeypatch.setattr(descendants, "adopt_orphans", lambda: None)
    monkeypatch.setattr(op, "cases_of", lambda task: numbered(96))
    monkeypatch.setattr(
        memcheck,
        "run_tool",
        lambda tool, name, asked, env, known: planted if "--control" in asked else clean,
    )
    task = Task(
        kind="memcheck", arm="cand", workload="slat_flow", parameters={}, device="cuda:0", seed=0
    )
    found = memcheck.probe(task, None)
    assert found.status == "passed"
    assert f"over {MOST_CASES} of 96 op cases" in found.detail
