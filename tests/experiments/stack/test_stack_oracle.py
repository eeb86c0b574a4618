"""An outside implementation in the blocks of a stack, and a stack without the steps between."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import cli
from experiments.conditions import Limits
from experiments.records import Sample
from experiments.stack import tracking as stack_tracking
from experiments.stack.oracle_view import tables
from experiments.stack.plan import Rows, leave_one_out, whole
from experiments.stack.records import Row, StackRecord, StackSpec
from experiments.stack.stats import analysed
from tests.support import runs, stack_factory
from tests.support.evidence_factory import sample as one_sample
from tests.support.stack_factory import LEVERS, RATE, STEP, adding
from tests.support.stub_workload import RATE as STUB_RATE

GAINS = adding(a=0.2, b=0.1, c=0.05)
ORACLE = 0.3
"""Log rate of the oracle above that of no lever."""


def binding(*, interleaved: bool = False) -> StackSpec:
    """The whole of three levers, each left out once, and an oracle; no steps."""
    rows = Rows()
    whole(LEVERS, rows)
    left_out = leave_one_out(LEVERS, rows)
    found = rows.all()
    last = Row(index=len(found), levers=(), parts=("oracle",), oracle="plain")
    changes = {"rows": (*found, last), "left_out": left_out, "overlaps": (), "stepwise": False}
    return stack_factory.spec(6, interleaved=interleaved, pair=False).model_copy(update=changes)


def with_oracle(record: StackRecord) -> StackRecord:
    """The record whose last row has the oracle's samples in place of the reference's."""
    row = record.evidence[-1]
    samples: list[Sample] = []
    for block in range(6):
        rate = 1000.0 * math.exp(0.001 * (-1) ** block)
        for arm, factor in (("ref", 1.0), ("oracle", math.exp(ORACLE))):
            if arm == "oracle" or record.spec.interleaved:
                values = {RATE.name: rate * factor, STEP.name: 1e6 / rate / factor}
                samples.append(one_sample(block, arm, values))
    filled = row.model_copy(update={"samples": tuple(samples)})
    return record.model_copy(update={"evidence": (*record.evidence[:-1], filled)})


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_whole_and_each_left_out_stand_against_the_oracle(interleaved: bool) -> None:
    of = binding(interleaved=interleaved)
    record = with_oracle(stack_factory.record(of, GAINS))
    analysis = analysed(record)
    assert of.rows[of.whole].levers == LEVERS
    assert not analysis.gains
    assert analysis.log_sum is None
    reference, all_on = (one.effect(RATE.name) for one in analysis.oracle)
    assert reference is not None
    assert all_on is not None
    assert reference.estimate == pytest.approx(-ORACLE, abs=0.02)
    assert all_on.estimate == pytest.approx(0.35 - ORACLE, abs=0.02)
    brings = [one.effect(RATE.name) for one in analysis.left_out]
    assert [one.estimate for one in brings if one] == pytest.approx([0.2, 0.1, 0.05], abs=0.02)
    shown = record.model_copy(update={"analysis": analysis, "status": "measured"})
    assert [table.title for table in tables(shown)] == ["The whole", "Against the oracle"]


def test_an_oracle_that_failed_costs_its_column_alone() -> None:
    record = with_oracle(stack_factory.record(binding(), GAINS, failed=(5,)))
    analysis = analysed(record)
    assert analysis.blocks
    assert analysis.total is not None
    assert all("out-of-memory" in one.missing for one in analysis.oracle)


def test_the_row_of_an_oracle_is_named_and_has_an_arm_of_its_own() -> None:
    rows = binding().rows
    assert [row.arm for row in rows] == ["ref", "cand", "cand", "cand", "cand", "oracle"]
    assert rows[-1].name == "oracle plain"


@pytest.mark.slow
@pytest.mark.parametrize("words", [["planted_fast=on"], []])
def test_a_stack_is_measured_with_the_oracle_in_its_blocks(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
) -> None:
    from experiments.requests import SilentListener
    from experiments.stack import pipeline as stack_pipeline
    from experiments.stack.requests import StackRequest

    runs.use_stub(monkeypatch)
    monkeypatch.setenv("LEVERGATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LEVERGATE_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setattr("experiments.stack.run.limits_for", lambda *_: Limits())
    monkeypatch.setattr(stack_tracking, "mirror", lambda *_: "")
    request = StackRequest(
        "stub", tuple(words), settings={"clock": "virtual"}, blocks=4, oracle="plain",
        stepwise=False, bare=not words, profile=True,
    )  # fmt: skip
    record = stack_pipeline.stack(request, SilentListener())
    assert record.status == "measured", record.faults
    reference, all_on = (one.effect(STUB_RATE) for one in record.analysis.oracle)
    assert reference is not None
    assert all_on is not None
    assert reference.estimate == pytest.approx(math.log(0.95), abs=0.02)
    gain = 0.223 if words else 0.0
    assert all_on.estimate == pytest.approx(math.log(0.95) + gain, abs=0.02)
    assert record.profile is not None
    assert cli.main(["stack", "--show", record.stack_id, "--json"]) == 0
    shown: Any = json.loads(capsys.readouterr().out)
    assert StackRecord.model_validate(shown["record"]) == record
    assert cli.main(["stack", "--show", record.stack_id]) == 0
    assert "Against the oracle" in capsys.readouterr().out
