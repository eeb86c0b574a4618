from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from support import records_factory as factory

import cli
from experiments import environment, pipeline
from experiments.registry.store import Registry
from experiments.requests import SyncReport
from experiments.run_record import RunRecord
from levers import catalog
from levers.source import source_digest

VERSIONS = dict(factory.environment().versions)
KINDS_HERE = (factory.environment().device_kind,)
MIRRORED = SyncReport(mirrored=("a",))


def stack_of(monkeypatch: pytest.MonkeyPatch, **others: str) -> None:
    """Let this machine have the versions of the made-up records, but for some."""

    def stack_versions(driver: str = "") -> dict[str, str]:
        return {**VERSIONS, **others} | ({"driver": driver} if driver else {})

    monkeypatch.setattr(environment, "stack_versions", stack_versions)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("LEVERGATE_HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("COLUMNS", "300")
    stack_of(monkeypatch)
    monkeypatch.setattr(environment, "driver_now", lambda: "")
    monkeypatch.setattr(environment, "device_kinds", lambda: KINDS_HERE)
    return tmp_path


@pytest.fixture
def store(home: Path, monkeypatch: pytest.MonkeyPatch):
    """A registry in the home; MLflow is always up to date."""
    monkeypatch.setattr(pipeline, "sync", lambda: MIRRORED)
    with Registry.open(home / "registry.db") as registry:
        yield registry


def run(
    name: str, day: int, of: RunRecord | None = None, lever: str = "fa2_nsplits_cap", **spec: Any
) -> RunRecord:
    """A record of the factory, made today with the lever's present source."""
    record = of or factory.default_on()
    spec = {"lever": lever, "levers_source_digest": source_digest(catalog.get(lever)), **spec}
    changes = {
        "run_id": name,
        "created_at": f"2026-03-{day:02d}T10:00:00+00:00",
        "spec": record.spec.model_copy(update=spec),
    }
    return record.model_copy(update=changes)


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    capsys.readouterr()
    assert cli.main(list(words)) == code
    out, err = capsys.readouterr()
    return " ".join((out if code == 0 else err).split())


def every_view(capsys: pytest.CaptureFixture[str], name: str) -> dict[str, str]:
    return {
        "show": said(capsys, "show", name),
        "json": said(capsys, "show", name, "--json"),
        "history": said(capsys, "history"),
        "history json": said(capsys, "history", "--json"),
        "list": said(capsys, "list"),
        "list json": said(capsys, "list", "--json"),
        "pr": said(capsys, "pr", name),
    }


def test_an_invalidation_shows_its_reason_and_name_wherever_the_verdict_does(store, capsys) -> None:
    store.save(run("a", 1))
    shown = said(capsys, "invalidate", "a", "--reason", "oracle ran eager", "--name", "Ada")
    assert "invalidated a" in shown
    assert "default state on -> undecided: decode fa2_nsplits_cap=auto" in shown
    assert "MLflow pages renewed: 1" in shown
    for view, text in every_view(capsys, "a").items():
        assert "oracle ran eager (Ada)" in text, view
    assert "may not be relied on" in said(capsys, "show", "a")
    assert "default-ON" in said(capsys, "show", "a")


def test_no_gate_passes_on_invalidated_evidence(store, capsys) -> None:
    store.save(run("a", 1))
    said(capsys, "show", "a", "--expect", "default-ON")
    said(capsys, "invalidate", "a", "--reason", "oracle ran eager", "--name", "Ada")
    said(capsys, "show", "a", "--expect", "default-ON", code=4)
    said(capsys, "show", "a", "--detailed-exitcode", code=4)
    said(capsys, "show", "a")


def test_an_invalidation_marks_several_runs_and_what_rests_on_them(store, capsys) -> None:
    record = factory.default_on()
    assert record.parity is not None
    cached = tuple(one.model_copy(update={"cached": True}) for one in record.parity.checks)
    rests = record.model_copy(
        update={"parity": record.parity.model_copy(update={"checks": cached})}
    )
    store.save(run("own-check", 1))
    store.save(run("other", 2, factory.not_engaged()))
    store.save(run("rests", 3, rests))
    words = ("invalidate", "own-check", "other", "--reason", "no power", "--name", "Ada")
    shown = said(capsys, *words)
    assert "invalidated rests: it rests on a check of the runs named" in shown
    assert "rests on a check of run own-check: no power (Ada)" in said(capsys, "show", "rests")
    again = said(capsys, "invalidate", "other", "--reason", "else", "--name", "Bob")
    assert "invalidated other already was, and keeps the reason given then" in again
    assert "no power (Ada)" in said(capsys, "show", "other")


def test_a_verdict_that_a_run_had_confirmed_is_unconfirmed_again(store, capsys) -> None:
    store.save(run("first", 1))
    store.save(run("second", 2))
    assert "confirmed by second" in said(capsys, "show", "first")
    said(capsys, "invalidate", "second", "--reason", "hot device", "--name", "Ada")
    assert "UNCONFIRMED" in said(capsys, "show", "first")
    assert "on (invalidated, unconfirmed)" in said(capsys, "list")


def test_a_run_without_a_verdict_can_be_invalidated_too(store, capsys) -> None:
    store.save(run("open", 1, factory.inconclusive()))
    said(capsys, "invalidate", "open", "--reason", "wrong clock", "--name", "Ada")
    assert "INVALIDATED: wrong clock (Ada)" in said(capsys, "show", "open")


def test_an_override_shows_its_name_and_reason_wherever_the_verdict_does(store, capsys) -> None:
    store.save(run("a", 1))
    words = ("--state", "off", "--name", "Bob", "--reason", "customer freeze")
    shown = said(capsys, "override", "fa2_nsplits_cap", *words)
    assert "ships 'off': decode fa2_nsplits_cap=auto vs off" in shown
    assert "overridden: off by Bob: customer freeze (the verdicts say on)" in shown
    for view, text in every_view(capsys, "a").items():
        assert "off by Bob: customer freeze" in text, view


def test_a_person_can_put_on_what_the_rules_left_off(store, capsys) -> None:
    store.save(run("a", 1, factory.regression()))
    words = ("--state", "on", "--name", "Bob", "--reason", "pilot")
    shown = said(capsys, "override", "fa2_nsplits_cap", "--run", "a", *words)
    assert "default state on (overridden), ships 'auto'" in shown
    assert "gated-OFF" in said(capsys, "show", "a")


def test_every_mark_is_in_the_html_page(store, capsys, home, monkeypatch) -> None:
    store.save(run("a", 1))
    store.save(run("b", 2, lever="segment_sum_broadcast", cand="on"))
    words = ("--name", "Bob", "--reason", "freeze")
    said(capsys, "override", "fa2_nsplits_cap", "--state", "off", *words)
    said(capsys, "invalidate", "a", "--name", "Ada", "--reason", "eager oracle")
    stack_of(monkeypatch, python="3.12.1")
    said(capsys, "show", "a", "--html", str(home / "report.html"))
    page = (home / "report.html").read_text(encoding="utf-8")
    assert "INVALIDATED: eager oracle (Ada)" in page
    assert "OVERRIDDEN: off by Bob: freeze" in page
    assert "STALE: measured on another stack: python" in page


def test_an_override_is_withdrawn_by_as_decided(store, capsys) -> None:
    store.save(run("a", 1))
    words = ("--name", "Bob", "--reason", "pilot")
    said(capsys, "override", "fa2_nsplits_cap", "--state", "off", *words)
    said(capsys, "override", "fa2_nsplits_cap", "--state", "as-decided", *words)
    assert "OVERRIDDEN" not in said(capsys, "show", "a")
    assert store.default_states()[0].state == "on"


def test_the_scope_of_an_override_is_the_one_that_fits_or_a_runs(store, capsys) -> None:
    store.save(run("auto", 1))
    store.save(run("three", 2, cand="3"))
    store.save(run("big", 3, parameters={"model": "big"}))
    words = ("override", "fa2_nsplits_cap", "--state", "off", "--name", "B", "--reason", "c")
    assert "3 scopes of fa2_nsplits_cap fit; pick one with --run" in said(capsys, *words, code=2)
    assert "2 scopes" in said(capsys, *words, "--setting", "auto", code=2)
    assert "fa2_nsplits_cap=3 vs off" in said(capsys, *words, "--setting", "3")
    said(capsys, *words, "--run", "big")
    overridden = {state.run_id for state in store.default_states() if state.override}
    assert overridden == {"three", "big"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("invalidate a", "an invalidation needs a name and a reason; give --name and --reason"),
        ("invalidate a --reason x", "needs a name and a reason"),
        ("invalidate a --name x", "needs a name and a reason"),
        ("invalidate --name x --reason y", "Missing argument"),
        ("invalidate nope --name x --reason y", "no run 'nope'"),
        ("override fa2_nsplits_cap --state on --name x", "an override needs a name and a reason"),
        ("override fa2_nsplits_cap --state on --reason x", "give --name and --reason"),
        ("override fa2_nsplits_cap --name x --reason y", "Missing option '--state'"),
        ("override fa2_nsplits_cap --state best --name x --reason y", "'best' is not one of"),
        ("override fa2_nsplit_cap --state on --name x --reason y", "did you mean 'fa2_nsplits"),
        ("override segment_sum_broadcast --state on --name x --reason y", "no verdict to override"),
        (
            "override fa2_nsplits_cap --setting 7 --state on --name x --reason y",
            "no verdict for setting 7 on workload any; it has verdicts for decode",
        ),
        (
            "override segment_sum_broadcast --run a --state on --name x --reason y",
            "run a is of lever 'fa2_nsplits_cap'",
        ),
        (
            "override fa2_nsplits_cap --run open --state on --name x --reason y",
            "run open holds no verdict (ab: inconclusive)",
        ),
        ("override fa2_nsplits_cap --run no --state on --name x --reason y", "no run 'no'"),
    ],
)
def test_a_mark_that_cannot_be_made_is_a_usage_error_and_marks_nothing(
    store, capsys, words, why
) -> None:
    store.save(run("a", 1))
    store.save(run("open", 2, factory.inconclusive()))
    before = (store.history(), store.default_states())
    assert why in said(capsys, *words.split(), code=2)
    assert (store.history(), store.default_states()) == before


def test_marks_answer_in_json(store, capsys) -> None:
    store.save(run("a", 1))
    words = ("--name", "Ada", "--reason", "x", "--json")
    answer = json.loads(said(capsys, "override", "fa2_nsplits_cap", "--state", "off", *words))
    assert (answer["command"], answer["state"]["state"]) == ("override", "off")
    assert answer["state"]["override"]["name"] == "Ada"
    answer = json.loads(said(capsys, "invalidate", "a", *words))
    assert (answer["command"], answer["runs"]) == ("invalidate", ["a"])
    assert answer["mirror"]["mirrored"] == ["a"]


def test_a_mark_is_stored_even_where_mlflow_is_down(store, capsys, monkeypatch) -> None:
    store.save(run("a", 1))
    down = SyncReport(waiting=("a",), reason="the server does not answer")
    monkeypatch.setattr(pipeline, "sync", lambda: down)
    assert cli.main(["invalidate", "a", "--name", "Ada", "--reason", "x"]) == 0
    assert "MLflow does not show it yet (the server does not answer)" in capsys.readouterr().err
    assert store.standing("a").invalidated == "x (Ada)"


# --- stale and unbound ------------------------------------------------------------------------


def test_a_verdict_of_another_stack_or_lever_source_is_shown_as_stale(
    store, capsys, monkeypatch
) -> None:
    store.save(run("a", 1))
    store.save(run("b", 2, cand="3", levers_source_digest="0123456789abcdef"))
    assert "STALE" not in said(capsys, "show", "a")
    assert "STALE: measured on another stack: the lever's source" in said(capsys, "show", "b")
    stack_of(monkeypatch, torch="2.14.0")
    for view, text in every_view(capsys, "a").items():
        assert "stale" in text.lower(), view
    assert "torch 2.13.0 -> 2.14.0" in said(capsys, "list")


def test_a_gpus_driver_makes_no_cpu_verdict_stale_and_a_gpu_one_only_where_it_changed(
    store, capsys, monkeypatch
) -> None:
    store.save(run("cpu", 1))
    gpu = factory.environment(device_kind="H200", versions={**VERSIONS, "driver": "580.1"})
    store.save(run("gpu", 2, factory.default_on().model_copy(update={"environment": gpu})))
    assert "STALE" not in said(capsys, "show", "gpu"), "no such device is here to compare with"
    monkeypatch.setattr(environment, "device_kinds", lambda: (*KINDS_HERE, "H200"))
    monkeypatch.setattr(environment, "driver_now", lambda: "580.2")
    assert "driver 580.1 -> 580.2" in said(capsys, "show", "gpu")
    monkeypatch.setattr(environment, "driver_now", lambda: "580.1")
    assert "STALE" not in said(capsys, "show", "gpu")
    assert "STALE" not in said(capsys, "show", "cpu")


def test_a_verdict_is_unbound_once_another_lever_is_on_beside_it(store, capsys) -> None:
    store.save(run("a", 1))
    assert "UNBOUND" not in said(capsys, "show", "a")
    store.save(run("b", 2, lever="segment_sum_broadcast", cand="on"))
    for view, text in every_view(capsys, "a").items():
        assert "unbound" in text.lower(), view
    why = "other levers on then: none; now: segment_sum_broadcast=on"
    assert why in said(capsys, "show", "a")
    said(capsys, "invalidate", "b", "--reason", "leaky", "--name", "Ada")
    assert "UNBOUND" not in said(capsys, "show", "a")


def test_a_run_measured_with_an_invalidated_lever_is_named_and_unbound(store, capsys) -> None:
    store.save(run("a", 1))
    stack = ({"lever": "fa2_nsplits_cap", "setting": "auto"},)
    other = factory.spec(lever="segment_sum_broadcast", cand="on", stack=stack)
    record = factory.default_on().model_copy(update={"spec": other})
    store.save(run("b", 2, record, lever="segment_sum_broadcast"))
    assert "UNBOUND" not in said(capsys, "show", "b")
    shown = said(capsys, "invalidate", "a", "--reason", "leaky", "--name", "Ada")
    assert "measured with a lever whose state changed: b" in shown
    assert "UNBOUND: other levers on then: fa2_nsplits_cap=auto; now: none" in said(
        capsys, "show", "b"
    )


def test_a_verdict_beside_other_levers_says_so_wherever_it_is_shown(store, capsys) -> None:
    store.save(run("a", 1))
    stack = ({"lever": "segment_sum_broadcast", "setting": "on"},)
    other = factory.spec(stack=stack)
    record = factory.regression().model_copy(update={"spec": other})
    store.save(run("b", 2, record))
    for view, text in every_view(capsys, "b").items():
        assert "segment_sum_broadcast=on" in text, view
    listed = " ".join(said(capsys, "list").split())
    assert "off beside segment_sum_broadcast=on" in listed
    assert "otherwise: beside no other lever run a is default-ON" in listed
    assert "BESIDE segment_sum_broadcast=on, on in both arms" in said(capsys, "show", "b")
    assert "BESIDE" not in said(capsys, "show", "a")


# --- MLflow -----------------------------------------------------------------------------------


def test_each_mark_makes_a_new_version_of_the_pages_that_show_it(store, capsys) -> None:
    store.save(run("a", 1))
    seen = [_versions(store)]
    store.save(run("b", 2))  # confirms a
    seen.append(_versions(store))
    words = ("--name", "Bob", "--reason", "pilot")
    said(capsys, "override", "fa2_nsplits_cap", "--state", "off", *words)
    seen.append(_versions(store))
    said(capsys, "override", "fa2_nsplits_cap", "--state", "as-decided", *words)
    assert _versions(store) == seen[1]
    said(capsys, "invalidate", "b", *words)
    assert _versions(store)["a"] == seen[0]["a"]
    assert len({one["a"] for one in seen}) == 3


def _versions(store: Registry) -> dict[str, str]:
    return {one.run_id: one.version for one in store.ended()}


@pytest.mark.slow
def test_the_mlflow_page_of_a_marked_run_is_renewed(home, capsys, with_store) -> None:
    with_store(home)
    with Registry.open(home / "registry.db") as registry:
        registry.save(run("a", 1, factory.out_of_memory()))
    pipeline.sync()
    assert "INVALIDATED" not in _page(home)
    shown = said(capsys, "invalidate", "a", "--reason", "wrong clock", "--name", "Ada")
    assert "MLflow pages renewed: 1" in shown
    assert "INVALIDATED: wrong clock (Ada)" in _page(home)


def _page(home: Path) -> str:
    with sqlite3.connect(home / "mlflow.db") as database:
        query = "select value from tags where key = 'mlflow.note.content'"
        rows = database.execute(query).fetchall()
    database.close()
    assert len(rows) == 1
    return str(rows[0][0])


def test_scopes_of_equal_words_are_told_apart_by_their_parameters(store, capsys) -> None:
    for day, sms in ((1, 48), (2, 96)):
        parameters = {**factory.default_on().spec.parameters, "sms": sms}
        store.save(run(f"sms-{sms}", day, parameters=parameters))
    undecided = {**factory.inconclusive().spec.parameters, "sms": 132}
    store.save(run("undecided", 3, factory.inconclusive(), parameters=undecided))
    said_ = ("--reason", "r", "--name", "Ada")
    text = said(capsys, "override", "fa2_nsplits_cap", "--state", "off", *said_, code=2)
    assert "2 scopes" in text
    assert "with sms=48 (run sms-48)" in text
    assert "with sms=96 (run sms-96)" in text
    assert "132" not in text
