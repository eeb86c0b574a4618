from __future__ import annotations

import json
from pathlib import Path

import pytest

import cli
from experiments.policy_replay.corpus import read

CORPUS = str(Path(__file__).parents[2] / "cases" / "decisions.jsonl")


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LEVERGATE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "120")


def replay(*words: str, file: str = CORPUS) -> int:
    return cli.main(["policy", "replay", file, *words])


def test_the_confusion_table_has_the_open_records_in_columns_of_their_own(capsys) -> None:
    assert replay() == 0
    lines = capsys.readouterr().out.splitlines()
    head = " ".join(lines[:3])
    assert "too little" in head
    assert "incon-" in head
    found = {line.split()[0]: line.split()[1:] for line in lines if line.strip()}
    assert found["default-ON"][-1] == "50"
    assert found["gated-OFF"][-1] == "30"
    assert found["terminal"][-1] == "1"


def test_clear_cut_and_opposite_verdicts_are_summed_up_with_causes(capsys) -> None:
    replay()
    out = " ".join(capsys.readouterr().out.split())
    assert "clear-cut records decided as recorded: 37 of 37 (100.0 %)" in out
    assert "opposite verdicts: 10 of 81 (12.3 %)" in out
    assert "neutral-kept-on (9): no axis gains 1 %" in out
    assert "left out, no verdict on the lever: async-1 (other), gdn-aot-tune (other)" in out


def test_details_show_every_record_with_its_reason(capsys) -> None:
    assert replay("--details") == 0
    out = capsys.readouterr().out
    assert all(f"  {record.id} " in out for record in read(Path(CORPUS)) if record.outcome)
    assert "no axis was recorded" in out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--min-clear", "0.95"], 0),
        (["--min-clear", "1"], 0),
        (["--min-clear", "0.95", "--policy", "strict-exact"], 5),
        (["--min-clear", "0.6", "--policy", "strict-exact"], 0),
        (["--policy", "strict-exact"], 0),
        (["--min-clear", "1.5"], 2),
        (["--policy", "strict"], 2),
        (["--unknown-state", "failing"], 2),
        (["--unknown-state", "ignored", "--min-clear", "0.95"], 0),
    ],
)
def test_the_share_of_clear_cut_records_sets_the_exit_code(capsys, words, code) -> None:
    assert replay(*words) == code


def test_a_gate_over_no_clear_cut_record_does_not_pass(capsys, tmp_path) -> None:
    neutral = next(one for one in read(Path(CORPUS)) if one.id == "tcp-nodelay")
    file = tmp_path / "one.jsonl"
    file.write_text(neutral.model_dump_json())
    assert replay(file=str(file)) == 0
    assert replay("--min-clear", "0", file=str(file)) == 2
    assert "no record is clear-cut; give a corpus" in capsys.readouterr().err


def test_a_clear_cut_record_that_is_missed_is_shown_with_its_reason(capsys) -> None:
    replay("--policy", "strict-exact")
    out = " ".join(capsys.readouterr().out.split())
    assert "paged-flash: recorded default-ON, decided gated-OFF: lossless where" in out


def test_the_json_holds_the_table_every_record_and_the_causes(capsys) -> None:
    assert replay("--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["schema_version"], answer["command"]) == (1, "policy replay")
    assert (answer["policy"], answer["unknown_state"]) == ("default", "wanted")
    assert len(answer["rows"]) == 81
    assert answer["table"]["default-ON"]["default-ON"] == 33
    assert (answer["clear"], answer["clear_agreed"], answer["opposite"]) == (37, 37, 10)
    assert answer["causes"]["slower-by-a-point"] == ["moe-glue-fuse"]


def test_policy_alone_is_a_usage_error(capsys) -> None:
    assert cli.main(["policy"]) == 2
    assert "Missing command" in capsys.readouterr().err
