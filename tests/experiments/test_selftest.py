from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

import cli
from experiments.records import REASONS, Outcome
from experiments.selftest import cases, run, table
from experiments.selftest.launches import Product
from experiments.selftest.planted_lever import Planted
from experiments.selftest.run import PLANTED, Result
from experiments.selftest.workload import SELFTEST
from experiments.workloads.base import DeviceFacts
from levers import catalog
from levers.errors import BadParameter, UnknownName

CPU = DeviceFacts("cpu", "a processor", 8 << 30)


@pytest.fixture(autouse=True)
def _own_locks(monkeypatch, tmp_path):
    """Another run on this machine does not hold up the tests."""
    monkeypatch.setenv("LEVERGATE_LOCKS", str(tmp_path / "locks"))


@pytest.fixture
def planted_levers(monkeypatch):
    monkeypatch.setenv("LEVERGATE_LEVERS", str(PLANTED))
    monkeypatch.setenv("LEVERGATE_WORKLOADS", run.WORKLOAD)


def result(name: str = "noop", **changes) -> Result:
    case = next(one for one in cases.CASES if one.name == name)
    right = Result(case, case.outcome, case.reason, "", pairs=0, seconds=1.0, tries=1)
    return replace(right, **changes)


def test_each_planted_lever_is_acceptable_and_each_is_used(planted_levers):
    files = {path.stem for path in PLANTED.glob("planted_*.py")}
    assert {case.planted for case in cases.CASES} == files
    for name in files:
        assert catalog.get(name).name == name


def test_each_case_expects_a_reason_of_the_closed_list():
    for case in cases.CASES:
        assert case.reason in REASONS[Outcome(case.outcome)], case.name
    assert len({case.name for case in cases.CASES}) == len(cases.CASES)


def test_every_verdict_and_an_invalid_run_are_among_what_is_expected():
    assert {case.outcome for case in cases.CASES} == {
        "default-ON",
        "gated-OFF",
        "terminal",
        "invalid",
    }


def test_each_case_has_a_scope_of_its_own_unless_it_follows_another():
    scopes = [case.parameters["scope"] for case in cases.CASES if not case.after]
    assert len(set(scopes)) == len(scopes)
    followers = [case for case in cases.CASES if case.after]
    assert [case.parameters["scope"] for case in followers] == [case.after for case in followers]


def test_a_case_brings_the_one_that_it_follows():
    names = [case.name for case in cases.chosen(["wrong_together"])]
    assert names == ["layout_alone", "wrong_together"]


def test_a_name_that_is_no_case_is_refused_with_the_closest():
    with pytest.raises(UnknownName, match="did you mean 'crashing'"):
        cases.chosen(["crashin"])
    with pytest.raises(UnknownName, match="takes an injected fault"):
        cases.injectable(["noop"])


def test_only_cases_that_ship_on_take_an_injected_fault():
    assert {case.outcome for case in cases.injectable([])} == {"default-ON"}


def test_a_setting_slows_or_spoils_a_planted_lever():
    lever = Planted("planted_x", Product("x", rounds=50, cost=0.5))
    assert lever.launch_at("on") is lever.launch
    slower, spoilt = lever.launch_at("20"), lever.launch_at("wrong")
    assert (slower.rounds, slower.cost, slower.change) == (60, 0.6, None)
    assert spoilt.change is not None


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"clock": "sun"}, BadParameter),
        ({"steps": "many"}, BadParameter),
        ({"noise": "loud"}, BadParameter),
        ({"colour": "red"}, UnknownName),
    ],
)
def test_a_parameter_that_cannot_be_used_is_refused(asked, error):
    with pytest.raises(error):
        SELFTEST.resolve(asked, CPU)


def test_the_workload_is_for_the_cpu():
    with pytest.raises(BadParameter, match="--device cpu"):
        SELFTEST.resolve({}, DeviceFacts("cuda:0", "a GPU", 8 << 30))


def test_the_variables_of_the_caller_come_back(monkeypatch, tmp_path):
    monkeypatch.setenv("LEVERGATE_HOME", "mine")
    monkeypatch.delenv("LEVERGATE_LEVERS", raising=False)
    monkeypatch.delenv("LEVERGATE_WORKLOADS", raising=False)
    with run.planted(tmp_path):
        assert run.os.environ["LEVERGATE_HOME"] == str(tmp_path)
    assert run.os.environ["LEVERGATE_HOME"] == "mine"
    assert "LEVERGATE_LEVERS" not in run.os.environ


def test_faults_go_through_the_whole_pipeline_and_get_their_reasons():
    results = run.run(cases.chosen(["leaky", "unwritten"]))
    assert [(one.case.name, one.problem) for one in results] == [("leaky", ""), ("unwritten", "")]


def test_an_injected_wrong_output_turns_the_gate_red():
    (only,) = run.run(cases.injectable(["fast_3"]), cand="wrong")
    assert not only.right
    assert (only.outcome, only.reason) == ("gated-OFF", "parity-failed")


def test_a_verdict_that_is_not_the_expected_one_is_a_problem():
    wanted = replace(cases.chosen(["noop"])[0], outcome="gated-OFF", reason="slower")
    (only,) = run.run((wanted,))
    assert not only.right
    assert "same plan" in only.problem


def test_a_disturbed_machine_gives_another_try_and_no_more_than_three(monkeypatch):
    asked = []

    class Disturbed:
        reason, detail, notes = "device-busy", "another process", ()
        outcome = Outcome.INVALID

    class Record:
        decision, samples, parity = Disturbed(), (), None

    monkeypatch.setattr(run, "_measured", lambda case, cand: asked.append(case) or Record())
    got = run.attempt(cases.chosen(["noop"])[0])
    assert (len(asked), got.tries, got.right) == (run.MOST_TRIES, run.MOST_TRIES, False)


def test_the_table_names_what_is_wrong():
    console = Console(width=110, file=io.StringIO())
    wrong = result("nan", outcome="default-ON", problem="it was not seen", tries=2)
    table.print_results(console, [result(), wrong])
    text = console.file.getvalue()
    assert "invalid not-engaged" in text
    assert "default-ON parity-failed, try 2  WRONG" in text
    assert "nan: it was not seen" in text
    assert "1 of 2 right, 2 s" in text


@pytest.fixture
def answered(monkeypatch):
    asked = []

    def answer(results):
        def run_(chosen, setting, on_result):
            asked.append(([case.name for case in chosen], setting))
            for one in results:
                on_result(one)
            return tuple(results)

        monkeypatch.setattr(run, "run", run_)
        return asked

    return answer


@pytest.mark.parametrize(("problem", "code"), [("", 0), ("missed", 1)])
def test_the_exit_code_says_whether_all_were_found(answered, capsys, problem, code):
    answered([result(), result("nan", problem=problem)])
    assert cli.main(["selftest", "--json"]) == code
    answer = json.loads(capsys.readouterr().out)
    assert (answer["command"], answer["right"]) == ("selftest", code == 0)
    assert [one["right"] for one in answer["cases"]] == [True, code == 0]


def test_an_injected_fault_is_asked_of_the_levers_that_ship_on(answered):
    asked = answered([result()])
    cli.main(["selftest", "--inject-slowdown", "20%"])
    cli.main(["selftest", "--inject-wrong-output", "--only", "fast_3"])
    cli.main(["selftest", "--only", "noop"])
    assert asked == [(["fast_10", "fast_3"], "20"), (["fast_3"], "wrong"), (["noop"], "on")]


@pytest.mark.parametrize(
    "words",
    [
        "--inject-slowdown 0%",
        "--inject-slowdown fast",
        "--inject-slowdown 3% --inject-wrong-output",
    ],
)
def test_a_fault_that_cannot_be_injected_is_a_usage_error(words):
    assert cli.main(["selftest", *words.split()]) == 2
