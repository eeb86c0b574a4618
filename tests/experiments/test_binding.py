"""What witness and parity hold for, and what becomes of them where that has changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments import binding
from experiments.binding import NOTE, Binding, bind, binding_of, lasting
from experiments.environment import cpu_device
from experiments.home import CHECKOUT
from experiments.parity.cache import ParityCache
from experiments.prepare import Comparison, compare
from experiments.requests import AbRequest, SilentListener
from experiments.run_record import RunRecord
from experiments.spec import LeverSetting
from experiments.spool import Spool
from levers.errors import BadParameter
from levers.source import source_digest
from tests.support import records_factory, runs

VARIABLES = {"HOME": "/home/a", "PYTHONPATH": "/x"}


class Hears(SilentListener):
    def __init__(self) -> None:
        self.said: list[str] = []

    def on_warning(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    runs.use_stub(monkeypatch)
    return tmp_path


@pytest.fixture
def comparison(plugins: Path) -> Comparison:
    request = AbRequest("planted_on_top", cand="on", beside=("planted_fast=on",))
    beside = (LeverSetting(lever="planted_fast", setting="on"),)
    return compare(request, cpu_device(), beside)


def begun(folder: Path, comparison: Comparison, *, noted: bool, samples: bool) -> Spool:
    """A run whose witness and parity are done."""
    whole = records_factory.default_on()
    none: dict[str, Any] = {
        "samples": (), "looks": (), "witnesses": (), "parity": None, "lost": (),
        "decision": None, "status": "running",
    }  # fmt: skip
    spool = Spool.create(folder, RunRecord(**{**dict(whole), **none}))
    if noted:
        bind(spool, comparison, VARIABLES, SilentListener())
    for witness in whole.witnesses:
        spool.witness(witness)
    assert whole.parity is not None
    spool.parity(whole.parity)
    for sample in whole.samples if samples else ():
        spool.sample(sample)
    return spool


def test_what_holds_goes_on_without_a_word(tmp_path: Path, comparison: Comparison) -> None:
    heard = Hears()
    with begun(tmp_path, comparison, noted=True, samples=False) as spool:
        lines = (spool.folder / "journal.jsonl").read_text()
        login = {**VARIABLES, "SSH_CONNECTION": "1.2.3.4", "TERM": "dumb", "PWD": "/elsewhere"}
        bind(spool, comparison, login, heard)
        assert (spool.folder / "journal.jsonl").read_text() == lines
        assert spool.record().parity is not None
    assert heard.said == []


def test_another_variable_drops_witness_and_parity_and_names_it(
    tmp_path: Path, comparison: Comparison
) -> None:
    heard = Hears()
    with begun(tmp_path, comparison, noted=True, samples=False) as spool:
        bind(spool, comparison, {**VARIABLES, "MYK": "1"}, heard)
        record = spool.record()
        assert (record.witnesses, record.parity) == ((), None)
        text = (
            "the variable MYK changed since this run was checked: witness and parity are taken "
            "again"
        )
        assert (record.warnings[-1], heard.said) == (text, [text])
        bind(spool, comparison, {**VARIABLES, "MYK": "1"}, heard)
        assert len(heard.said) == 1
    resumed, loaded = Spool.resume(tmp_path, record.run_id)
    resumed.close()
    assert loaded.record.parity is None, "the journal reads back as it was written"


def test_what_has_samples_is_refused_and_stays(tmp_path: Path, comparison: Comparison) -> None:
    with begun(tmp_path, comparison, noted=True, samples=True) as spool:
        before = spool.record()
        with pytest.raises(BadParameter, match=r"the variable MYK changed .* start a new run"):
            bind(spool, comparison, {**VARIABLES, "MYK": "1"}, Hears())
        assert spool.record() == before


def test_samples_of_others_for_which_both_were_taken_are_as_good(
    tmp_path: Path, comparison: Comparison
) -> None:
    with begun(tmp_path, comparison, noted=True, samples=False) as spool:
        with pytest.raises(BadParameter, match="MYK"):
            bind(spool, comparison, {**VARIABLES, "MYK": "1"}, Hears(), timed=True)
        assert spool.record().parity is not None


def test_a_run_begun_before_there_were_notes_is_checked_again_or_goes_on_with_a_warning(
    tmp_path: Path, comparison: Comparison
) -> None:
    for samples in (False, True):
        heard = Hears()
        with begun(tmp_path / str(samples), comparison, noted=False, samples=samples) as spool:
            bind(spool, comparison, VARIABLES, heard)
            assert (spool.record().parity is not None) == samples
            assert "was not noted with which code and variables" in heard.said[0]
            assert spool.record().warnings[-1] == heard.said[0]
            assert spool.noted(NOTE) is not None
            bind(spool, comparison, VARIABLES, heard)
            assert len(heard.said) == 1


def test_the_code_of_a_lever_that_is_on_in_both_arms_and_the_workloads_are_part_of_it(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    then = binding_of(comparison, VARIABLES)
    assert set(then.levers) == {"planted_on_top", "planted_fast"}
    other = {**then.levers, "planted_fast": "other"}
    assert then.unlike(then.model_copy(update={"levers": other})) == "lever planted_fast"
    assert "workload's code" in then.unlike(then.model_copy(update={"workload": "other"}))
    assert "the parity battery" in then.unlike(then.model_copy(update={"code": "other"}))


def test_a_plugged_in_workload_is_digested_with_what_it_imports_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comparison: Comparison
) -> None:
    package = tmp_path / "ownpack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "named.py").write_text("from ownpack.inner import X\n")
    (package / "inner.py").write_text("X = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("LEVERGATE_WORKLOADS", "stub=ownpack.named:STUB")
    first = binding_of(comparison, VARIABLES).workload
    assert binding_of(comparison, VARIABLES).workload == first
    (package / "inner.py").write_text("X = 2\n")
    assert binding_of(comparison, VARIABLES).workload != first


def test_what_lets_in_or_says_where_one_sits_is_no_part_and_no_value_is_kept() -> None:
    other = {"HF_TOKEN": "s", "AWS_SECRET_ACCESS_KEY": "s", "_": "/bin/x", "LEVERGATE_HOME": "/h"}
    assert lasting({**other, "MY_KEYS": "3", "LC_ALL": "C"}) == {"MY_KEYS": "3", "LC_ALL": "C"}


def test_a_variable_that_only_begins_like_a_terminals_counts_and_so_does_every_levers() -> None:
    own = {"TERM_FACTOR": "0", "LESSONS": "3", "HISTOGRAM": "1", "LEVER_MAX_TOKEN": "8"}
    terminal = {"TERM": "xterm", "TERM_PROGRAM": "x", "TMUX_PANE": "1", "LESSOPEN": "|", "LESS": ""}
    assert lasting({**own, **terminal, "HISTFILE": "/h", "TMUX": "1"}) == own


def test_what_passed_is_found_again_on_another_device_of_the_kind_and_from_another_folder() -> None:
    then = {"CUDA_VISIBLE_DEVICES": "GPU-1", "PYTHONPATH": f"{CHECKOUT}:/lib", "OUT": "/tmp/a"}
    there = {"CUDA_VISIBLE_DEVICES": "GPU-2", "PYTHONPATH": "/lib", "LEVERGATE_LEVERS": "/levers"}
    assert lasting(then) == lasting(there) == {"PYTHONPATH": "/lib"}


def test_of_the_path_it_counts_which_tools_it_finds(tmp_path: Path) -> None:
    (tmp_path / "gcc").write_text("#!/bin/sh\n")
    found = lasting({"PATH": f"/nowhere:{tmp_path}"})
    (tmp_path / "gcc").chmod(0o755)
    assert lasting({"PATH": "/nowhere"}) == found
    assert lasting({"PATH": str(tmp_path)}) != found


def test_values_are_not_written(tmp_path: Path, comparison: Comparison) -> None:
    with begun(tmp_path, comparison, noted=False, samples=False) as spool:
        bind(spool, comparison, {"MYK": "very private"}, Hears())
        assert "private" not in (spool.folder / "journal.jsonl").read_text()
        noted = dict(spool.noted(NOTE) or {})
    assert noted.pop("name") == NOTE
    assert len(Binding(**noted).hints["MYK"]) == binding.HINT_DIGITS


def test_a_kept_result_is_not_found_again_where_a_lever_beside_it_has_changed(
    tmp_path: Path, comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keys() -> tuple[str, ...]:
        cache = ParityCache(tmp_path, "stack")
        return tuple(cache.key(name, comparison.spec) for name in ("op", "determinism"))

    op, determinism = keys()
    changed = {"planted_fast"}
    monkeypatch.setattr(
        "experiments.parity.cache.source_digest",
        lambda lever: "changed" if lever.name in changed else source_digest(lever),
    )
    assert keys()[0] == op, "a case of the operation has no lever beside it"
    assert keys()[1] != determinism
    changed.add("planted_on_top")
    assert keys()[0] != op, "it belongs to the lever as it is now"


def test_a_lever_of_the_models_of_the_tokens_counts_too(comparison: Comparison) -> None:
    from experiments.spec import TokenModel

    model = TokenModel.unknown("shipped", (LeverSetting(lever="planted_same", setting="on"),))
    spec = comparison.spec.model_copy(update={"tokens_on": (model,)})
    assert "planted_same" in binding_of(replace(comparison, spec=spec), VARIABLES).levers
