from __future__ import annotations

from typing import Any

from experiments.ranks.blame import RankEnd, failure, hung, innermost
from experiments.ranks.report import RankReport
from experiments.tasks import TaskResult

PEER_GONE = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer"
WAITS = """Current thread 0x1 (most recent call first):
  File "/x/torch/distributed/distributed_c10d.py", line 10 in barrier
  File "/x/experiments/ranks/parallel.py", line 5 in start
"""
SLEEPS = """Thread 0x2 (most recent call first):
  File "/x/threading.py", line 3 in wait

Current thread 0x1 (most recent call first):
  File "/x/levers/slow.py", line 12 in call
  File "/x/torch/nn/modules/module.py", line 1 in _call_impl
"""


def end(rank: int, message: str = "", when: float = 0.0, **changes: Any) -> RankEnd:
    report = None
    if message:
        result = TaskResult(failure="crashed", stage="measure", message=message)
        report = RankReport(rank=rank, result=result, ended=when)
    return RankEnd(**{"rank": rank, "code": 3, "seen": when, "report": report, **changes})


def test_the_error_of_a_peer_that_is_gone_is_an_echo_even_where_it_came_first() -> None:
    found = failure([end(0, PEER_GONE, 1.0), end(1, "ValueError: wrong", 2.0)])
    assert found.message == "rank 1 of 2: ValueError: wrong"


def test_of_two_failures_the_first_is_named() -> None:
    found = failure([end(0, "ValueError: late", 5.0), end(1, "ValueError: early", 2.0)])
    assert found.message == "rank 1 of 2: ValueError: early"
    assert "rank 0: ValueError: late" in found.traceback


def test_where_all_are_echoes_the_first_is_named() -> None:
    assert failure([end(0, PEER_GONE, 3.0), end(1, PEER_GONE, 1.0)]).message.startswith("rank 1")


def test_a_killed_rank_is_told_from_its_peers_error() -> None:
    found = failure([end(0, PEER_GONE, 1.0), end(1, code=-9, seen=2.0)])
    assert (found.failure, found.message) == ("crashed", "rank 1 of 2: killed by SIGKILL")


def test_a_rank_that_the_kernel_killed_for_memory_ran_out_of_it() -> None:
    found = failure([end(0, PEER_GONE, 1.0), end(1, code=-9, seen=2.0, memory=True)])
    assert found.failure == "out-of-memory"


def test_a_rank_that_was_ended_with_the_group_is_not_to_blame() -> None:
    found = failure([end(0, code=None, stage="measure"), end(1, "ValueError: wrong", 2.0)])
    assert found.facts["failed_rank"] == 1
    assert "rank 0 was ended with the group at measure" in found.traceback


def test_the_rank_that_does_not_wait_is_the_one_that_hangs() -> None:
    waiting = end(0, code=None, log=WAITS, stage="measure")
    asleep = end(1, code=None, log=SLEEPS, stage="measure")
    found = hung([waiting, asleep], 60)
    assert found.failure == "hung"
    assert found.message.startswith("rank 1 of 2 did not end within 60 s in /x/levers/slow.py:12")
    assert "rank 0, at measure" in found.traceback


def test_where_all_wait_no_rank_is_blamed() -> None:
    found = hung([end(rank, code=None, log=WAITS, stage="measure") for rank in range(2)], 60)
    assert found.message == "the ranks did not end within 60 s; the group was ended"
    assert "failed_rank" not in found.facts


def test_the_innermost_frame_is_that_of_the_thread_that_was_asked() -> None:
    assert innermost(SLEEPS) == "/x/levers/slow.py:12 in call"
    assert innermost("no stack here") == ""
