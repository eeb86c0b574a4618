from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.policy_replay.agreement import (
    CAUSES,
    COLUMNS,
    ReplayReport,
    clear_cut,
    decided,
    replayed,
)
from experiments.policy_replay.corpus import RecordedDecision, RecordedGate, read
from experiments.policy_replay.evidence import POLICIES, broken, evidence_of, named
from experiments.records import Outcome
from levers.errors import BadParameter, UnknownName

CORPUS = Path(__file__).parents[2] / "cases" / "decisions.jsonl"
DEFAULT = named("default")


def axis(percent: float | None, name: str = "tok_s", **changes: Any) -> dict[str, Any]:
    """An axis whose log ratio is so many hundredths; None is a candidate that nobody measured."""
    cand = None if percent is None else 100 * math.exp(percent / 100)
    values = {"axis": name, "unit": "tok/s", "higher_is_better": True, "ref_value": 100.0}
    return {**values, "cand_value": cand, **changes}


def gate(passed: int | None = 16, total: int | None = 16, name: str = "greedy", note: str = ""):
    return {"gate": name, "passed": passed, "total": total, "note": note}


def recorded(verdict: str = "default-ON", *axes: dict[str, Any], **changes: Any):
    values: dict[str, Any] = {
        "id": "one",
        "lever": "lever",
        "kind": "kernel",
        "verdict": verdict,
        "arms": {"ref": "off", "cand": "on"},
        "parity": (gate(),),
        "axes": axes,
    }
    return RecordedDecision.model_validate({**values, **changes})


def outcome(record: RecordedDecision, policy: str = "default", unknown: Any = "wanted"):
    found = decided(record, named(policy), unknown)
    return str(found.outcome), found.reason


def row(record: RecordedDecision, policy: str = "default", unknown: Any = "wanted"):
    return replayed([record], named(policy), unknown).rows[0]


@pytest.fixture(scope="module")
def report() -> ReplayReport:
    return replayed(read(CORPUS), DEFAULT, "wanted")


def test_the_corpus_is_decided_as_recorded_where_it_is_clear_cut(report: ReplayReport) -> None:
    assert len(report.clear) >= 30
    assert {one.clear for one in report.clear} == {"default-ON", "gated-OFF"}
    assert report.clear_share is not None
    assert report.clear_share >= 0.95


def test_at_most_fifteen_percent_of_the_corpus_is_decided_the_other_way(
    report: ReplayReport,
) -> None:
    assert report.opposite_share <= 0.15


def test_every_record_of_the_corpus_has_its_place(report: ReplayReport) -> None:
    assert len(report.rows) + len(report.left_out) == 83
    assert sorted(verdict for _, verdict in report.left_out) == ["other", "other"]
    assert sum(sum(counts.values()) for counts in report.table.values()) == len(report.rows)
    assert {one.column for one in report.rows} <= set(COLUMNS)
    assert all(one.why for one in report.rows)


@pytest.mark.parametrize("policy", [one.name for one in POLICIES])
@pytest.mark.parametrize("unknown", ["wanted", "ignored"])
def test_each_opposite_verdict_has_a_cause_from_the_closed_list(policy: str, unknown: Any) -> None:
    found = replayed(read(CORPUS), named(policy), unknown)
    assert all(one.cause in CAUSES for one in found.opposite)
    assert sum(map(len, found.causes.values())) == len(found.opposite)
    assert not any(one.cause for one in found.rows if one.relation != "opposite")


def test_no_id_of_a_record_enters_its_decision() -> None:
    records = read(CORPUS)
    renamed = [one.model_copy(update={"id": str(n), "lever": "x"}) for n, one in enumerate(records)]
    before, after = (replayed(each, DEFAULT, "wanted").rows for each in (records, renamed))
    strip = [replace(one, id="", lever="") for one in before]
    assert strip == [replace(one, id="", lever="") for one in after]


def test_rejected_counts_as_gated_off_and_other_and_deferred_are_left_out() -> None:
    records = [
        recorded(verdict, axis(3), id=verdict) for verdict in ("rejected", "other", "deferred")
    ]
    found = replayed(records, DEFAULT, "wanted")
    assert [one.recorded for one in found.rows] == ["gated-OFF"]
    assert found.left_out == (("other", "other"), ("deferred", "deferred"))


CASES = {
    "a win on an axis without a recorded state": (
        recorded("default-ON", axis(3)),
        "failing-axis-win",
    ),
    "a win on a failing axis": (
        recorded("default-ON", axis(3, failing_before=True, oracle_ratio_before=0.9)),
        "failing-axis-win",
    ),
    "a win on a passing axis": (
        recorded("default-ON", axis(3, failing_before=False)),
        "no-failing",
    ),
    "a loss beyond the margin": (recorded("default-ON", axis(-1.1), axis(9, "b")), "regression"),
    "a loss inside the margin": (
        recorded("default-ON", axis(-0.9), axis(9, "b")),
        "failing-axis-win",
    ),
    "too small to keep": (recorded("default-ON", axis(0.9)), "not-worth-keeping"),
    "exact and neutral": (recorded("default-ON", axis(0.1), byte_exact=True), "byte-exact"),
    "exact and a little slower": (recorded("default-ON", axis(-0.1), byte_exact=True), "slower"),
    "less is better": (
        recorded("default-ON", axis(-3, higher_is_better=False, unit="ms")),
        "failing-axis-win",
    ),
    "ratios to an outside implementation alone": (
        recorded(
            "default-ON",
            axis(None, ref_value=None, oracle_ratio_before=0.5, oracle_ratio_after=0.6),
        ),
        "failing-axis-win",
    ),
    "a failed gate": (recorded("default-ON", axis(9), parity=(gate(15),)), "parity-failed"),
    "no axis": (recorded("default-ON"), "too-little-recorded"),
    "an arm without a value": (
        recorded("default-ON", axis(9), axis(None, "b")),
        "too-little-recorded",
    ),
    "no parity and a win": (recorded("default-ON", axis(9), parity=()), "too-little-recorded"),
    "no count and a win": (
        recorded("default-ON", axis(9), parity=(gate(None, None),)),
        "too-little",
    ),
    "no parity and a loss": (recorded("default-ON", axis(-9), parity=()), "regression"),
    "no parity, exact, a little slower": (
        recorded("default-ON", axis(-0.1), parity=(), byte_exact=True),
        "slower",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_rules_of_a_live_run_decide(name: str) -> None:
    record, reason = CASES[name]
    assert outcome(record)[1].startswith(reason)


def test_an_unknown_state_can_be_taken_as_passing() -> None:
    assert outcome(recorded("default-ON", axis(3)), unknown="ignored")[1] == "no-failing-axis-win"


def test_the_named_policies_differ_in_what_they_ask_of_exactness() -> None:
    exact, lossless = (
        recorded("default-ON", axis(0.1), byte_exact=True),
        recorded("default-ON", axis(3)),
    )
    assert [outcome(exact, one.name)[1] for one in POLICIES] == [
        "byte-exact",
        "byte-exact",
        "not-worth-keeping",
    ]
    assert [outcome(lossless, one.name)[1] for one in POLICIES] == [
        "failing-axis-win",
        "parity-failed",
        "failing-axis-win",
    ]


def test_a_policy_that_does_not_exist_is_a_usage_error() -> None:
    with pytest.raises(UnknownName, match="did you mean 'needs-win'"):
        named("need-win")


@pytest.mark.parametrize(
    ("gates", "is_broken"),
    [
        ((gate(15, 16),), True),
        ((gate(5, 6, note="was 4"),), False),
        ((gate(3, 6, note="was 4"),), True),
        ((gate(122, 128, "golden ref"), gate(4, 128, "golden cand")), True),
        ((gate(122, 128, "golden ref"), gate(122, 128, "golden cand")), False),
        ((gate(None, 20, note="diverges at token 2"),), True),
        ((gate(None, None, note="failed"),), True),
        ((gate(None, None, note="char-identical"),), False),
        ((gate(16, 16, note="one of them failed before"),), False),
        ((gate(), gate(None, None, "memcheck 0")), False),
    ],
)
def test_a_gate_is_held_against_the_reference_and_words_can_only_fail_it(
    gates: Any, is_broken: bool
) -> None:
    assert broken(recorded("default-ON", axis(9), parity=gates)) is is_broken


def test_words_never_pass_a_gate() -> None:
    praised = recorded("default-ON", axis(9), parity=(gate(None, None, note="char-identical"),))
    assert outcome(praised) == ("inconclusive", "too-little-recorded")


@pytest.mark.parametrize(
    ("record", "clear"),
    [
        (recorded("default-ON", axis(9), parity=(gate(15),)), "gated-OFF"),
        (recorded("default-ON", axis(-1.0)), "gated-OFF"),
        (recorded("default-ON", axis(-0.9)), None),
        (recorded("default-ON", axis(-2), axis(2, "b")), None),
        (recorded("default-ON", axis(2.01)), "default-ON"),
        (recorded("default-ON", axis(1.9)), None),
        (recorded("default-ON", axis(9), axis(-0.6, "b")), None),
        (recorded("default-ON", axis(9), axis(-0.4, "b")), "default-ON"),
        (recorded("default-ON", axis(9), axis(None, "b")), None),
        (recorded("default-ON", axis(9, failing_before=False)), None),
        (recorded("default-ON", axis(9), parity=()), None),
        (recorded("default-ON", axis(9), parity=(gate(5, 6, note="was 4"),)), None),
        (recorded("default-ON"), None),
    ],
)
def test_what_is_clear_cut_is_read_from_the_record(record: RecordedDecision, clear: Any) -> None:
    assert clear_cut(record, "wanted") == (Outcome(clear) if clear else None)


def test_a_win_is_not_clear_cut_where_unknown_states_count_as_passing() -> None:
    assert clear_cut(recorded("default-ON", axis(9)), "ignored") is None


CAUSED = {
    "exact-left-off": (recorded("gated-OFF", axis(0.1), byte_exact=True), "default"),
    "win-left-off": (recorded("rejected", axis(3)), "default"),
    "neutral-kept-on": (recorded("default-ON", axis(0.1)), "default"),
    "loss-accepted": (recorded("default-ON", axis(9), axis(-3, "b")), "default"),
    "slower-by-a-point": (recorded("default-ON", axis(-0.1), byte_exact=True), "default"),
    "win-on-a-passing-axis": (recorded("default-ON", axis(9, failing_before=False)), "default"),
    "parity-accepted": (recorded("default-ON", axis(9), parity=(gate(15),)), "default"),
    "policy-demands-more": (recorded("default-ON", axis(9)), "strict-exact"),
}


def test_the_closed_list_of_causes_is_covered_whole() -> None:
    assert set(CAUSED) == set(CAUSES)


@pytest.mark.parametrize("cause", CAUSED)
def test_each_cause_follows_from_the_record(cause: str) -> None:
    found = row(*CAUSED[cause])
    assert (found.relation, found.cause) == ("opposite", cause)


def test_a_passing_axis_that_gained_nothing_is_a_neutral_lever() -> None:
    record = recorded("default-ON", axis(0.9, failing_before=False), axis(0.1, "b"))
    assert row(record, "needs-win").cause == "neutral-kept-on"


def test_off_and_terminal_are_not_opposite() -> None:
    found = row(recorded("rejected", axis(0.1)))
    assert (found.column, found.relation, found.cause) == ("terminal", "same-state", "")


def test_a_recorded_value_is_a_point_and_every_axis_a_primary() -> None:
    evidence = evidence_of(recorded("default-ON", axis(3), axis(1, "b")), DEFAULT.policy, "wanted")
    assert evidence.engaged == ("tok_s", "b")
    assert evidence.look is not None
    assert [(one.kind, one.units) for one in evidence.look.effects] == [("deterministic", 1)] * 2
    assert all(one.lower == one.upper == one.estimate for one in evidence.look.effects)


def test_arms_that_are_recorded_as_equal_are_not_engaged() -> None:
    same = recorded("default-ON", axis(0), arms={"ref": "on", "cand": "on"})
    assert outcome(same) == ("invalid", "not-engaged")
    assert row(same).column == "invalid"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no decision"),
        ("not json", "line 1: no JSON"),
        ("\n[1]", "line 2: the record"),
        ('{"id": "a"}', "line 1: lever: Field required"),
        (json.dumps(recorded().model_dump(mode="json")) + "\n", ""),
        ((json.dumps(recorded().model_dump(mode="json")) + "\n") * 2, "one more than once"),
    ],
)
def test_a_file_that_is_no_corpus_is_named_by_its_line(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "corpus.jsonl"
    file.write_text(text)
    if not said:
        assert len(read(file)) == 1
        return
    with pytest.raises(BadParameter, match=said):
        read(file)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadParameter, match="No such file"):
        read(tmp_path / "nothing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadParameter, match="no UTF-8"):
        read(tmp_path / "binary")


def test_an_impossible_record_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="17 passed of 16"):
        RecordedGate(gate="greedy", passed=17, total=16)
    with pytest.raises(ValueError, match="recorded twice"):
        recorded("default-ON", axis(1), axis(2))
    with pytest.raises(ValueError, match="need a ref and a cand"):
        recorded("default-ON", axis(1), arms={"ref": "off"})
