"""Turns of two processes of a pair: both warm up at once, then one at a time works."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from experiments import baton
from experiments.baton import Alone, Baton

TURNS = 5


def ends(aside: tuple[int, ...] = ()) -> tuple[Baton, Baton]:
    first, second = (baton.of(arguments) for arguments in baton.arguments(aside))
    assert isinstance(first, Baton)
    assert isinstance(second, Baton)
    return first, second


def together(*works: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert not any(thread.is_alive() for thread in threads)


def test_both_warm_up_at_once_and_then_only_one_works_at_a_time() -> None:
    meeting = threading.Barrier(2, timeout=10)
    working: list[str] = []
    seen: list[tuple[str, ...]] = []

    def work(end: Baton, name: str) -> Callable[[], None]:
        def run() -> None:
            end.start()
            meeting.wait()  # passes only where both are in their warm-up at the same time
            for _ in range(TURNS):
                end.turn()
                working.append(name)
                seen.append(tuple(working))
                time.sleep(0.002)
                working.remove(name)
            end.close()

        return run

    first, second = ends()
    together(work(first, "first"), work(second, "second"))
    assert len(seen) == 2 * TURNS
    assert all(len(names) == 1 for names in seen)


def test_the_second_warms_up_aside_and_measures_on_its_own_core() -> None:
    mine = os.sched_getaffinity(0)
    aside = (min(mine),)
    first, second = ends(aside)
    found: list[set[int]] = []

    def leading() -> None:
        first.start()
        first.turn()
        first.close()

    def following() -> None:
        second.start()
        found.append(os.sched_getaffinity(0))
        second.turn()
        found.append(os.sched_getaffinity(0))
        second.close()

    together(leading, following)
    assert found == [set(aside), mine]


def test_an_end_whose_peer_died_in_its_warm_up_goes_on_alone() -> None:
    first, second = ends()

    def leading() -> None:
        first.start()
        first.turn()
        first.turn()

    def dying() -> None:
        second.start()
        second.close()

    together(leading, dying)
    assert first.waited_s < 10
    first.close()


def test_a_second_end_whose_first_left_before_measuring_goes_on_alone() -> None:
    first, second = ends()

    def leaving() -> None:
        first.start()
        time.sleep(0.05)
        first.close()

    def following() -> None:
        second.start()
        second.turn()
        second.turn()

    together(leaving, following)
    second.close()


def test_waiting_is_counted_apart_from_work() -> None:
    first, second = ends()

    def slow() -> None:
        first.start()
        time.sleep(0.2)
        first.turn()
        first.close()

    def following() -> None:
        second.start()
        second.turn()
        second.close()

    together(slow, following)
    assert second.waited_s > 0.1


def test_where_no_other_process_takes_turns_there_is_nothing_to_wait_for() -> None:
    assert isinstance(baton.of({}), Alone)
