"""Parity of several levers as one step, and what the steps of the levers make of it later."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import h200_calls as calls
from benchmarks import h200_parity
from benchmarks.h200_decode_rehearsal import REHEARSAL
from benchmarks.h200_decode_steps import FULL, TRAINED, steps
from benchmarks.h200_journal import Journal
from benchmarks.h200_training_evidence import held, runs_of, unfinished
from benchmarks.h200_training_steps import Step
from experiments.run_record import RunRecord
from experiments.spool import Spool
from experiments.workloads import catalog as workloads
from experiments.workloads.base import DeviceFacts
from tests.support import records_factory, runs, step_words

H200 = DeviceFacts("cuda:0", "NVIDIA H200", 150_754_820_096, 132, (9, 0))
CORES, SANITIZERS = 16, 4


def test_it_asks_for_what_the_levers_own_steps_ask_for_and_for_parity_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every = steps(FULL)
    plain, first, second = (one for one in every if one.kind == "parity")
    names = ("parity.plain", "parity.first", "parity.second")
    assert (plain.name, first.name, second.name) == names
    assert first.parts + second.parts == tuple(one for one in every if one.item == "lever")
    for step in (first, second):
        assert (step.needs, step.resumable) == (TRAINED, True)
    for words, part in ((one.words, part) for one in (first, second) for part in one.parts):
        own = step_words.asked(part.words, monkeypatch)
        asked = step_words.asked([*part.words, *words], monkeypatch)
        assert (own.parity_only, asked.parity_only, asked.parity_jobs) == (False, True, 8)
        assert (asked.lever, asked.cand, asked.tokens_on) == (own.lever, own.cand, own.tokens_on)
    assert (plain.needs, plain.resumable) == ("", True)  # beside the training
    by_lever = {one.words[1]: one for one in (*first.parts, *second.parts)}
    assert len(plain.parts) == len(by_lever)
    for part in plain.parts:
        own = step_words.asked(by_lever[part.words[1]].words, monkeypatch)
        asked = step_words.asked(part.words, monkeypatch)
        assert replace(asked, tokens_on=own.tokens_on) == own
        assert not asked.tokens_on


@pytest.mark.parametrize("scale", [FULL, REHEARSAL], ids=["full", "rehearsal"])
def test_what_runs_at_once_fits_the_machine(scale: Any) -> None:
    at_once, jobs = scale.parity
    decode = workloads.get("decode")
    needs = decode.needs(decode.resolve({"model": FULL.small, **FULL.row}, H200), H200)
    assert at_once * jobs * needs.device_memory_bytes < 0.95 * H200.memory_bytes
    assert at_once * (jobs + 1 + SANITIZERS) <= CORES


# --- the step, on commands of a moment -----------------------------------------------------------


def driver(folder: Path, device: str = "cuda:0", **more: Any) -> calls.Driver:
    out, state = folder / "out", folder / "state"
    for one in (out, state / "homes"):
        one.mkdir(parents=True, exist_ok=True)
    journal = Journal.open(state)
    return calls.Driver(
        state,
        out,
        time.monotonic() + 600,
        device,
        journal,
        "h200",
        shared=folder / "shared",
        **more,
    )


def lever(name: str) -> Step:
    return Step(f"lever.{name}", ("ab", name, "--cand", "on", "--yes"), 1)


def parity(*names: str, at_once: int = 2) -> Step:
    return h200_parity.step_of("levers", [lever(name) for name in names], at_once, 3)


def leave(home: Path, *, passed: bool = False, decided: RunRecord | None = None) -> None:
    """A run as a command leaves it: begun, with its parity, or decided."""
    whole = decided or records_factory.default_on()
    empty = {"samples": (), "looks": (), "lost": (), "parity": None, "decision": None}
    head = {**empty, "witnesses": (), "failures": (), "faults": (), "status": "running"}
    begun = [one for one in runs_of(home) if one.status != "decided"]
    if begun:
        spool, _ = Spool.resume(home / "runs", begun[0].run_id)
    else:
        spool = Spool.create(home / "runs", whole.model_copy(update=head))
    with spool:
        if passed and whole.parity is not None:
            for witness in whole.witnesses:
                spool.witness(witness)
            spool.parity(whole.parity)
        if decided is not None:
            spool.finish(decided)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What was run: a lever passes, or does what its name says."""
    heard: list[tuple[str, ...]] = []

    def within(words: Sequence[str], variables: Mapping[str, str], *_: Any) -> int | None:
        heard.append(tuple(words[2:]))
        home, name = Path(variables["LEVERGATE_HOME"]), words[3]
        if name == "cut" and "--resume" not in words:
            leave(home)
            return None
        if name == "wrong":
            leave(home, decided=records_factory.parity_failed())
            return 0
        if name == "mistaken":
            return 2
        leave(home, passed=True)
        return 3

    monkeypatch.setattr(calls, "within", within)
    return heard


def test_what_passes_is_left_to_its_own_step_and_a_verdict_is_that_steps_answer(
    tmp_path: Path, commands: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    call, step = driver(tmp_path), parity("right", "wrong", "mistaken")
    assert not call.go([step])
    states = {"lever.right": "checked", "lever.wrong": "done", "lever.mistaken": "failed"}
    assert call.journal.of(step)["parts"] == states
    assert call.journal.of(step)["state"] == "failed"
    assert call.journal.of(lever("wrong"))["reason"] == "parity-failed"
    said = capsys.readouterr().out
    assert "lever.right            checked" in said
    assert "parity passed" in said
    assert "1 checked, 1 done, 1 failed" in said
    words = ("--parity-only", "--parity-jobs", "3")
    assert sorted(commands) == sorted(
        (*lever(n).words, *words) for n in ("right", "wrong", "mistaken")
    )

    commands.clear()
    assert not call.go([step, lever("wrong"), lever("right")])
    again, own = commands
    assert again == (*lever("mistaken").words, *words), "the others are not checked again"
    (run,) = runs_of(call.home(lever("right")))
    assert own == ("ab", "right", "--resume", run.run_id, "--yes"), "its samples go on"


def test_what_a_call_cuts_off_goes_on_in_the_next_one(
    tmp_path: Path, commands: list[tuple[str, ...]]
) -> None:
    call, step = driver(tmp_path), parity("cut", "right")
    assert not call.go([step])
    entry = call.journal.of(step)
    assert (entry["state"], entry["text"]) == ("interrupted", "1 interrupted, 1 checked")
    begun = unfinished(call.home(lever("cut")), "ab")
    assert begun
    commands.clear()
    again = driver(tmp_path)
    assert again.go([step])
    words = ("--resume", begun, "--yes", "--parity-only", "--parity-jobs", "3")
    assert commands == [("ab", "cut", *words)]
    assert again.journal.of(step)["calls"] == 2
    assert json.loads((again.out / "h200.json").read_text())["lever.cut"]["state"] == "checked"


def test_nothing_is_begun_without_time_and_a_timed_lever_is_left_alone(
    tmp_path: Path, commands: list[tuple[str, ...]]
) -> None:
    late = driver(tmp_path)
    late.deadline = time.monotonic() + 80
    h200_parity.take(late, parity("right"))
    assert commands == []
    assert late.journal.of(parity("right"))["text"] == "1 open"
    call = driver(tmp_path)
    leave(call.home(lever("right")), passed=True)
    home = call.home(lever("right"))
    (run,) = runs_of(home)
    spool, _ = Spool.resume(home / "runs", run.run_id)
    with spool:
        spool.sample(records_factory.samples(records_factory.EFFECTS, 1)[0])
    assert held(home)
    assert call.go([parity("right")])
    assert commands == []


def test_as_many_as_it_says_are_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(2, timeout=30)

    def within(words: Sequence[str], variables: Mapping[str, str], *_: Any) -> int:
        together.wait()
        leave(Path(variables["LEVERGATE_HOME"]), passed=True)
        return 3

    monkeypatch.setattr(calls, "within", within)
    assert driver(tmp_path).go([parity("a", "b", "c", "d")])
    logs = sorted(path.name for path in (tmp_path / "out").glob("h200.lever.*.log"))
    assert logs == [f"h200.lever.{name}.log" for name in "abcd"]


# --- through real processes -----------------------------------------------------------------------


def test_a_levers_step_goes_on_with_the_run_and_another_call_finds_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.use_stub(monkeypatch)
    monkeypatch.setenv("LEVERGATE_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    more = ("--set", "clock=virtual", "--oracle", "none", "--pairs", "6")
    parts = [
        Step(f"lever.{name}", ("ab", name, "--cand", "on", *more, "--yes"), 1)
        for name in ("planted_fast", "planted_slow")
    ]
    step = h200_parity.step_of("levers", parts, 2, 1)
    (tmp_path / "shared").mkdir()
    one = driver(tmp_path, "cpu")
    assert one.go([step])
    (begun,) = runs_of(one.home(parts[0]))
    assert one.go(parts[:1])
    (ended,) = runs_of(one.home(parts[0]))
    assert (ended.run_id, ended.status) == (begun.run_id, "decided")
    assert ended.parity == begun.parity
    assert len(ended.samples) >= 12

    other = driver(tmp_path / "other", "cpu")
    other.shared = tmp_path / "shared"
    asked = Step(parts[1].name, (*parts[1].words, "--parity-only"), 1)
    other.take(asked)
    (found,) = runs_of(other.home(parts[1]))
    assert found.parity is not None
    assert [one.cached for one in found.parity.checks if one.status == "passed"] == [True] * 3
