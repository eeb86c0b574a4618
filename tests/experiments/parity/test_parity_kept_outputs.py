from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from experiments.parity import kept_outputs
from experiments.parity.battery import Battery
from experiments.parity.cache import ParityCache
from experiments.parity.kept_outputs import Kept, KeptOutputs
from experiments.parity_records import CheckResult
from experiments.spec import AbSpec, LeverSetting, TokenModel
from experiments.tasks import Outputs, Task
from tests.support.fake_arms import PLAIN, FakeArms, FakeLever, FakeWorkload, for_arm, spec, streams

MODEL = TokenModel(parameters={"model": "shipped", "model_digest": "d", "concurrency": "1,4"})


def asked(**changes: Any) -> AbSpec:
    """A comparison whose tokens are decoded with a named model."""
    of = spec(parameters={"model": "random-0.6b", "concurrency": "1,4"})
    return of.model_copy(update={"tokens_on": (MODEL,), **changes})


def far(task: Task) -> Outputs | None:
    """No token that parts is a near-tie."""
    prefixes = task.arguments.get("prefixes")
    return None if prefixes is None else Outputs(gaps=(9.0,) * len(prefixes))


def wrong(task: Task) -> Outputs | None:
    """A candidate whose last token the reference would not choose."""
    parted = streams(*[[i, 7, 8, 1] for i in range(8)])
    return far(task) or for_arm("cand", streams=parted)(task)


OTHER = streams(*[[i, 7, 8, 2] for i in range(8)])
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
def test_nobody_fails_by_what_another_comparison_decoded(tmp_path: Path) -> None:
    """A check that fails with streams that were found is made again with its own."""
    cache = ParityCache(tmp_path, "stack")
    run(FakeArms(lambda task: PLAIN.model_copy(update={"streams": OTHER})), cache, asked())
    right, bad = FakeArms(far), FakeArms(wrong)
    found = run(right, cache, asked(lever="other"), Named())
    assert (found.status, "earlier" in found.detail) == ("passed", False)
    assert ("ref", "tokens", 1) in decoded(right)
    again = run(bad, cache, asked(lever="third"), Named("third"))
    assert again.status == "failed"
    assert decoded(bad).count(("cand", "tokens", 1)) == 2
    after = FakeArms()
    run(after, cache, asked(lever="fourth"), Named("fourth"))
    assert ("ref", "tokens", 1) in decoded(after)  # what a failed check used is gone


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
@pytest.mark.parametrize(
    "damage",
    [
        lambda text: b"{",
        lambda text: b"\xff\xfe\x80",
        lambda text: b"{}",
        lambda text: text.replace(b"[0,7,8,9]", b"[0,7,8,1]"),
        lambda text: (
            Kept(digest=Outputs().content_digest(), outputs=Outputs()).model_dump_json().encode()
        ),
    ],
    ids=["cut", "no text", "empty", "edited", "no streams"],
)
def test_streams_that_are_not_as_they_were_written_are_decoded_again(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    cache = ParityCache(tmp_path, "stack")
    run(FakeArms(), cache, asked())
    for path in (tmp_path / kept_outputs.FOLDER).glob("*.json"):
        whole = path.read_bytes()
        path.write_bytes(damage(whole))
        assert path.read_bytes() != whole
    arms = FakeArms()
    run(arms, cache, asked(lever="other"), Named())
    assert ("ref", "tokens", 1) in decoded(arms)


@pytest.mark.usefixtures("sourced")
def test_what_nobody_asked_for_goes_after_its_time(tmp_path: Path) -> None:
    cache, folder = ParityCache(tmp_path, "stack"), tmp_path / kept_outputs.FOLDER
    run(FakeArms(), cache, asked())
    for name, age in (("young.json", -60), ("old.json", 60)):
        (folder / name).write_text("{}")
        then = time.time() - kept_outputs.UNUSED_S - age
        os.utime(folder / name, (then, then))
    before = len(list(folder.iterdir()))
    run(FakeArms(), cache, asked(lever="other"), Named())  # keeps its candidate's
    assert not (folder / "old.json").exists()
    assert (folder / "young.json").exists()
    assert len(list(folder.iterdir())) == before - 1 + 2


@pytest.mark.usefixtures("sourced")
def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / kept_outputs.FOLDER).write_text("a file")
    assert run(FakeArms(), ParityCache(tmp_path, "stack"), asked()).status == "passed"
