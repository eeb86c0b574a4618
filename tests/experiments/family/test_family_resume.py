"""A selection that is interrupted and gone on with decides as one that was not."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cli
from experiments import resuming, several, spool_reader
from experiments.conditions import Limits
from experiments.family import resume as family_resume
from experiments.family import run as family_run
from experiments.family import stage as family_stage
from experiments.family import store as family_store
from experiments.family.outcome import record_of
from experiments.family.records import FamilyRecord
from experiments.family.stage import Member
from experiments.home import Home
from experiments.parity_records import ParityReport
from experiments.requests import AbRequest, SilentListener
from experiments.run_record import RunRecord
from experiments.sitting import Sitting
from experiments.spool import Spool
from experiments.tasks import TaskResult
from experiments.values import Scalar
from experiments.witness_records import Witness
from experiments.workloads.base import DeviceFacts
from levers import catalog
from levers.base import Facts
from levers.policy import ParityClass
from tests.experiments.family.test_family_stage import Machine, members_of, stage
from tests.support import evidence_factory, records_factory, runs
from tests.support.stub_workload import RATE, STEP, StubWorkload

__all__ = ["members_of"]

SETTINGS = ("1", "2", "3", "4")
RUN = records_factory.default_on().run_id


class Interrupted(Machine):
    """Ended by a person just before one process."""

    def __init__(self, number: int, arm: str) -> None:
        super().__init__()
        self.fails = self._stop
        self.at = (number, arm)

    def _stop(self, number: int, arm: str) -> TaskResult | None:
        if (number, arm) == self.at:
            raise KeyboardInterrupt
        return None


def reopened(members: list[Member], folder: Path) -> list[Member]:
    """The settings as another process finds them on disk."""
    found = []
    for member in members:
        member.spool._lock.release()  # as the end of its process does; the fixture closes it
        spool, loaded = Spool.resume(folder, member.spool.folder.name)
        again = Member(member.setting, member.comparison, spool)
        family_resume._as_read(again, loaded.record)
        found.append(again)
    return found


def told(family: FamilyRecord) -> dict[str, Any]:
    """What a selection says, without how long it took."""
    return {**family.model_dump(mode="json"), "stopped": "", "total_s": 0.0}


@pytest.mark.parametrize(
    ("number", "arm"), [(0, "ref"), (2, "4"), (4, "oracle"), (5, "ref"), (6, "1"), (8, "ref")]
)
def test_it_decides_as_if_it_had_not_been_interrupted(
    members_of: Callable[..., list[Member]], tmp_path: Path, number: int, arm: str
) -> None:
    whole = members_of(*SETTINGS, oracle="plain")
    running = stage(whole, Machine())
    stopped = running.go()
    wanted = record_of("f", whole, stopped, running.rounds, 1.0)
    for member in whole:
        member.spool.folder.rename(tmp_path / f"whole-{member.setting}")
    cut = members_of(*SETTINGS, oracle="plain")
    machine = Interrupted(number, arm)
    with pytest.raises(KeyboardInterrupt):
        stage(cut, machine).go()
    again = reopened(cut, tmp_path)
    rounds = family_resume.whole_rounds(again)
    assert rounds == number
    machine = Machine()
    going = stage(again, machine, rounds=rounds)
    stopped = going.go()
    assert {pair for pair, _ in machine.ran} == set(range(rounds, going.rounds))
    assert told(record_of("f", again, stopped, going.rounds, 1.0)) == told(wanted)
    for member in again:
        member.spool.close()


def test_the_samples_of_a_cut_round_are_dropped_and_their_lines_stay(
    members_of: Callable[..., list[Member]], tmp_path: Path
) -> None:
    members = members_of("1", "4")
    with pytest.raises(KeyboardInterrupt):
        stage(members, Interrupted(3, "ref")).go()
    again = reopened(members, tmp_path)
    before = [len(member.spool.record().samples) for member in again]
    assert family_resume.whole_rounds(again) == 3
    for member, samples in zip(again, before, strict=True):
        kept = member.spool.record().samples
        assert {one.pair for one in kept} == {0, 1, 2}
        journal = (member.spool.folder / "journal.jsonl").read_text()
        assert journal.count(family_resume.CUT) == samples - len(kept)
        member.spool.close()


@contextlib.contextmanager
def measuring(*_: object) -> Iterator[tuple[Any, Any]]:
    """No device is held and no process runs."""
    machine = Machine()
    machine.processes = lambda: ()  # type: ignore[attr-defined]
    machine.frozen = SimpleNamespace(variables={})  # type: ignore[attr-defined]
    machine.time_limit_s = 60.0  # type: ignore[attr-defined]
    yield machine, SimpleNamespace(look=lambda *_: {})


def let_through(self: Sitting) -> bool:
    """Witness and parity of a setting, without a process."""
    setting = self.comparison.spec.cand
    for arm, plan in (("ref", "kernel=product"), ("cand", f"kernel={setting}")):
        plans = {RATE: plan, STEP: plan}
        self.spool.witness(Witness.model_validate({"arm": arm, "plans": plans, "launches": {}}))
    passed = evidence_factory.passed("determinism")
    self.spool.parity(ParityReport(checks=(passed,), claimed=ParityClass.LOSSLESS))
    return False


def decoded(
    self: StubWorkload, parameters: Mapping[str, Scalar], model: str, device: DeviceFacts
) -> Mapping[str, Scalar]:
    return {**parameters, "model": model, "model_digest": f"weights of {model}"}


def no_kernel(self: object, facts: Facts, setting: str) -> tuple[str, ...]:
    """The setting 4 has none for the model ``large``."""
    return ("no kernel",) if (setting, facts.parameters.get("model")) == ("4", "large") else ()


def test_a_model_on_which_one_setting_cannot_run_is_left_out_for_that_one_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.use_stub(monkeypatch)
    monkeypatch.setenv("LEVERGATE_HOME", str(tmp_path))
    monkeypatch.setenv("LEVERGATE_LOCKS", str(tmp_path / "locks"))
    winners: list[AbRequest] = []

    def measured(request: AbRequest, *_: object) -> RunRecord:
        winners.append(request)
        return records_factory.default_on()

    monkeypatch.setattr(several.pipeline, "ab", measured)
    monkeypatch.setattr(family_run, "measuring", measuring)
    monkeypatch.setattr(Sitting, "before_timing", let_through)
    monkeypatch.setattr(Sitting, "limits", lambda self: Limits())
    monkeypatch.setattr(StubWorkload, "token_parameters", decoded, raising=False)
    monkeypatch.setattr(type(catalog.get("planted_several")), "unmet", no_kernel)
    words = ["ab", "planted_several", "--set", "clock=virtual", "--pairs", "6", "--yes"]
    models = ["--tokens-on", "small", "--tokens-on", "large"]
    lacks = "tokens of planted_several=4 are not compared on large: planted_several=4 cannot run "
    where = Home(tmp_path, tmp_path / "locks")

    assert cli.main([*words, "--cand", "1,4", *models]) == 0
    assert lacks in " ".join(capsys.readouterr().err.split())
    (name,) = family_store.ids(where)
    folder, found = family_store.folder(where, name), family_store.begun(where, name)
    assert found is not None
    evidence = [spool_reader.load(folder, run_id).record for _, run_id in found.runs]
    assert [[one.text for one in record.spec.tokens_on] for record in evidence] == [
        ["small", "large"],
        ["small"],
    ]
    assert [len(record.warnings) for record in evidence] == [0, 1]
    resuming.refuse_other_selection(found.request, found, evidence[1])
    (asked,) = winners
    compared = {"1": ("small", "large"), "4": ("small",)}
    assert asked.tokens_on == compared[str(asked.cand)]
    assert any(text.startswith(lacks) for text in asked.selected) == (asked.cand == "4")

    four = family_store.found(where, name)
    assert four is not None
    chosen = four.model_copy(update={"winner": "4", "winner_run": ""})
    several._decided(where, found.request, chosen, SilentListener())
    assert winners[-1].tokens_on == ("small",)
    assert winners[-1].selected[0].startswith(lacks)

    assert cli.main([*words, "--cand", "4,5", *models[2:]]) == 0
    monkeypatch.setattr(
        type(catalog.get("planted_several")), "unmet", lambda *asked: no_kernel(*asked[:2], "4")
    )
    assert cli.main([*words, "--cand", "1,4", *models]) == 2
    assert "leave large out, or name another model" in " ".join(capsys.readouterr().err.split())


OTHERS = (
    (("--cand", "1,2"), "--cand 1,4, not 1,2"),
    (("--set", "clock=wall"), "--set clock virtual, not wall"),
    (("--pairs", "9"), "--pairs 6, not 9"),
    (("--budget", "90s"), "--budget none, not 90s"),
    (("--oracle", "none"), "--oracle plain, not none"),
)
"""What is typed beside ``--resume`` and was begun otherwise, and what is said of it."""


def test_a_selection_is_gone_on_with_by_its_id_and_its_evidence_is_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.use_stub(monkeypatch)
    monkeypatch.setenv("LEVERGATE_HOME", str(tmp_path))
    monkeypatch.setenv("LEVERGATE_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setattr(several.pipeline, "ab", lambda *_: records_factory.default_on())
    monkeypatch.setattr(family_run, "measuring", measuring)
    monkeypatch.setattr(Sitting, "before_timing", let_through)
    monkeypatch.setattr(Sitting, "limits", lambda self: Limits())
    whole_round = family_stage.Stage._round

    def cut(self: family_stage.Stage) -> None:
        if self.rounds == 2:
            raise KeyboardInterrupt
        whole_round(self)

    words = ["ab", "planted_several", "--cand", "1,4", "--set", "clock=virtual", "--pairs", "6"]
    monkeypatch.setattr(family_stage.Stage, "_round", cut)
    assert cli.main([*words, "--yes"]) == 130
    where = Home(tmp_path, tmp_path / "locks")
    (name,) = family_store.ids(where)
    assert f"go on with --resume {name}" in capsys.readouterr().err
    monkeypatch.setattr(family_stage.Stage, "_round", whole_round)
    assert cli.main(["show", name]) == 2
    assert "has not ended" in capsys.readouterr().err
    assert cli.main(["ab", "planted_fast", "--resume", name]) == 2
    assert "is of planted_several" in capsys.readouterr().err
    for typed, apart in OTHERS:
        assert cli.main(["ab", "planted_several", "--resume", name, *typed]) == 2
        assert f"selection {name} has {apart}" in " ".join(capsys.readouterr().err.split())
    assert cli.main([*words, "--resume", name, "--json"]) == 0
    selection = json.loads(capsys.readouterr().out)["selection"]
    assert selection["family_id"] == name
    assert selection["winner_run"] == RUN
    assert selection["rounds"] == 6
    evidence = selection["settings"][0]["run_id"]
    assert cli.main(["show", evidence, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["run_id"], shown["record"]["kind"]) == (evidence, "family")
    assert cli.main([*words, "--resume", name]) == 2
    assert "has ended" in capsys.readouterr().err
