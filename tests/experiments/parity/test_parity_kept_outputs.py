from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from experiments.parity import kept_outputs
from experiments.parity.battery import Battery
from experiments.parity.cache import ParityCache
from experiments.parity.kept_outputs import KeptOutputs
from experiments.parity_records import CheckResult
from experiments.spec import AbSpec, LeverSetting, TokenModel
from experiments.tasks import Outputs, Task
from tests.support.fake_arms import PLAIN, FakeArms, FakeLever, FakeWorkload, for_arm, spec, streams

MODEL = TokenModel(parameters={"model": "shipped", "model_digest": "d", "concurrency": "1,4"})


def asked(**changes: Any) -> AbSpec:
    """A comparison whose tokens are decoded with a named model."""
    of = spec(parameters={"model": "random-0.6b", "concurrency": "1,4"})
    return of.model_copy(update={"tokens_on": (MODEL,), **changes})


def wrong(task: Task) -> Outputs | None:
    """A candidate whose last token the reference would not choose."""
    if task.arguments.get("want") == "gaps":
        return Outputs(gaps=(9.0,) * len(task.arguments["prefixes"]))
    parted = streams(*[[i, 7, 8, 1] for i in range(8)])
    return for_arm("cand", streams=parted)(task)


BESIDE = (LeverSetting(lever="beside", setting="on"),)


def leaking(task: Task) -> Outputs | None:
    """A lever that changes the outputs also where it is off."""
    loaded = any(one.lever == "planted" for one in task.levers)
    changed = {"digests": {"logits": "zz", "state": "bb"}, "streams": streams([1, 2], [3, 4])}
    return PLAIN.model_copy(update=changed) if loaded else None


@dataclass
class Named(FakeLever):
    """Another lever over the same operation."""

    name: str = field(default="other")


def decoded(arms: FakeArms) -> list[tuple[str, str, int]]:
    """Who decoded what, and the concurrency."""
    return [
        (task.arm, str(task.arguments["want"]), int(task.arguments["concurrency"]))
        for task in arms.asked
        if task.kind == "outputs" and task.arguments.get("want") in ("tokens", "truth")
    ]


@pytest.fixture
def sourced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParityCache, "_source", lambda _, lever: lever)


def run(
    arms: FakeArms, cache: ParityCache, of: AbSpec, lever: FakeLever | None = None
) -> CheckResult:
    whole = Battery.of(of, lever or FakeLever(), FakeWorkload(), arms, cache)
    report, _ = whole.run(lambda _: None)
    return next(one for one in report.checks if one.name == "tokens")


@pytest.mark.usefixtures("sourced")
def test_a_second_lever_is_held_against_the_streams_that_the_first_decoded(tmp_path: Path) -> None:
    cache = ParityCache(tmp_path, "stack")
    first, second = FakeArms(), FakeArms()
    assert "earlier" not in run(first, cache, asked()).detail
    whole = [("ref", 1), ("ref", 1), ("cand", 1), ("ref", 4), ("ref", 4), ("cand", 4)]
    assert [(arm, count) for arm, _, count in decoded(first)] == whole
    other = asked(lever="other", seed=77, levers_source_digest="another")
    found = run(second, cache, other, Named())
    assert [(arm, count) for arm, _, count in decoded(second)] == [("cand", 1), ("cand", 4)]
    assert found.status == "passed"
    assert found.detail.endswith("streams of 4 processes as an earlier comparison decoded them")


@pytest.mark.usefixtures("sourced")
def test_a_candidate_is_decoded_and_compared_however_much_is_kept(tmp_path: Path) -> None:
    cache = ParityCache(tmp_path, "stack")
    run(FakeArms(), cache, asked())
    found = run(FakeArms(wrong), cache, asked(lever="other"), Named())
    assert found.status == "failed"


@pytest.mark.usefixtures("sourced")
def test_what_a_failed_check_used_is_decoded_again(tmp_path: Path) -> None:
    cache = ParityCache(tmp_path, "stack")
    run(FakeArms(), cache, asked())
    run(FakeArms(wrong), cache, asked(lever="other"), Named())
    again = FakeArms()
    run(again, cache, asked(lever="third"), Named("third"))
    assert ("ref", "tokens", 1) in decoded(again)


@pytest.mark.usefixtures("sourced")
def test_streams_are_found_again_only_for_the_same_task_code_levers_and_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = FakeArms()
    run(arms, ParityCache(tmp_path, "stack"), asked())
    task = next(one for one in arms.asked if decoded(FakeArms(asked=[one])))
    kept = KeptOutputs(ParityCache(tmp_path, "stack"))
    assert kept.has(task)
    assert [one.setting for one in task.levers] == ["off"]
    on = LeverSetting(lever="planted", setting="on")
    off = LeverSetting(lever="other", setting="off")
    assert kept.has(task.model_copy(update={"levers": (off,), "subject": off}))
    for change in (
        {"levers": (LeverSetting(lever="unseen", setting="on"),)},
        {"levers": (*task.levers, LeverSetting(lever="unseen", setting="on"))},
        {"levers": (on.model_copy(update={"setting": "other"}),)},
        {"pair": 2},
        {"seed": 9},
        {"device": "cuda:0"},
        {"parameters": {**task.parameters, "model_digest": "other"}},
        {"arguments": {**task.arguments, "prompts": 17}},
    ):
        assert not kept.has(task.model_copy(update=change)), change
    assert not KeptOutputs(ParityCache(tmp_path, "another stack")).has(task)
    own = Task.model_validate({**dict(task), "levers": (on,)})
    assert kept.key(own) != kept.key(task)
    monkeypatch.setattr(ParityCache, "_source", lambda _, lever: "")
    assert KeptOutputs(ParityCache(tmp_path, "stack")).key(own) == ""  # code that cannot be read


@pytest.mark.usefixtures("sourced")
def test_digests_are_never_kept_so_that_the_kill_switch_is_always_tried(tmp_path: Path) -> None:
    cache = ParityCache(tmp_path, "stack")
    run(FakeArms(), cache, asked())
    second = FakeArms()
    run(second, cache, asked(lever="other"), Named())
    digests = [one for one in second.asked if one.arguments.get("want") == "digests"]
    assert {(one.levers[0].setting if one.levers else "none") for one in digests} == {
        *("none", "off", "on"),
    }


@pytest.mark.usefixtures("sourced")
def test_what_a_lever_at_off_decodes_is_its_own_until_rollback_has_vouched_for_it(
    tmp_path: Path,
) -> None:
    """A lever whose ``off`` is not what was there before must not be others' reference."""
    cache, defective = ParityCache(tmp_path, "stack"), FakeArms(leaking)
    report, _ = Battery.of(asked(), FakeLever(), FakeWorkload(), defective, cache).run(
        lambda _: None
    )
    status = {one.name: one.status for one in report.checks}
    assert (status["tokens"], status["rollback"]) == ("passed", "lever-defective")
    other, again = FakeArms(), FakeArms(leaking)
    assert run(other, cache, asked(lever="other"), Named()).status == "passed"
    assert ("ref", "tokens", 1) in decoded(other)
    run(again, ParityCache(tmp_path, "stack"), asked())
    assert decoded(again) == []  # its own, and the check itself was kept


@pytest.mark.usefixtures("sourced")
def test_a_rollback_that_is_kept_vouches_too(tmp_path: Path) -> None:
    cache = ParityCache(tmp_path, "stack")
    run(FakeArms(), cache, asked())
    for path in (tmp_path / kept_outputs.FOLDER).iterdir():
        path.unlink()
    more = (*asked().tokens_on, MODEL.model_copy(update={"levers": BESIDE}))
    run(FakeArms(), cache, asked(tokens_on=more))  # rollback is found, tokens are decoded
    second = FakeArms()
    run(second, cache, asked(lever="other", tokens_on=more), Named())
    assert {arm for arm, _, _ in decoded(second)} == {"cand"}


@pytest.mark.usefixtures("sourced")
def test_damaged_streams_are_decoded_again_and_unused_ones_go(tmp_path: Path) -> None:
    cache = ParityCache(tmp_path, "stack")
    run(FakeArms(), cache, asked())
    files = sorted((tmp_path / kept_outputs.FOLDER).glob("*.json"))
    for path in files:
        path.write_text("{")
        old = time.time() - kept_outputs.UNUSED_S - 60
        os.utime(path, (old, old))
    arms = FakeArms()
    run(arms, cache, asked(lever="other"), Named())
    assert ("ref", "tokens", 1) in decoded(arms)
    left = list((tmp_path / kept_outputs.FOLDER).glob("*.json"))
    assert left
    assert all(path.read_text() != "{" for path in left)


@pytest.mark.usefixtures("sourced")
def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / kept_outputs.FOLDER).write_text("a file")
    assert run(FakeArms(), ParityCache(tmp_path, "stack"), asked()).status == "passed"
