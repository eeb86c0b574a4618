from __future__ import annotations

import math

import pytest
from rich.console import Console

from experiments.parity_records import CheckResult, ParityReport
from experiments.records import Sample
from experiments.spec import LeverSetting
from experiments.stack import floor_view
from experiments.stack import reports as stack_reports
from experiments.stack import tracking as stack_tracking
from experiments.stack.plots import plots
from experiments.stack.records import Analysis, Published, StackRecord
from experiments.stack.render import print_stack
from experiments.stack.stats import analysed
from experiments.stack.view import view
from levers.policy import Axis, ParityClass
from tests.support import stack_factory as factory
from tests.support.stack_factory import RATE, adding

GAINS = {"a": math.log(2.1), "b": math.log(1.15), "c": -0.02}


def measured(**changes: object) -> StackRecord:
    figure = Published(after="a", axis="gain", value=2.1, at={"bs": "8"})
    of = factory.spec().model_copy(update={"published": (figure,)})
    record = factory.record(of, adding(**GAINS), noise=0.001)
    fields = {**dict(record), "status": "measured", "analysis": analysed(record), **changes}
    return StackRecord.model_validate(fields)


def test_the_table_shows_each_row_its_own_gain_and_the_whole() -> None:
    text = stack_reports.markdown(measured())
    assert "a measurement, no verdict" in text
    assert "| 1 | + a=on |" in text
    assert "2.10" in text
    assert "no gain is counted twice" in text
    assert "Pairs that overlap" in text
    assert "| 1: a | gain | 2.1 | bs=8 | 2.10" in text
    rows = [line for line in text.splitlines() if line.startswith("| 3 |")]
    assert "| -1.9" in rows[0] or "(-2.0 %" in rows[0] or "(-1.9 %" in rows[0]


@pytest.mark.parametrize("interleaved", [False, True])
def test_each_row_stands_as_a_multiple_of_its_bandwidth_floor_where_samples_state_it(
    interleaved: bool,
) -> None:
    record = factory.record(factory.spec(interleaved=interleaved), adding(**GAINS))
    assert floor_view.tables(record.model_copy(update={"status": "measured"})) == ()
    evidence = tuple(
        row.model_copy(update={"samples": tuple(stating(row.row.name, one) for one in row.samples)})
        for row in record.evidence
    )
    stated = record.model_copy(update={"evidence": evidence, "status": "measured"})
    (table,) = floor_view.tables(stated)
    assert table.columns == ("levers", "c1", "c8")
    assert table.rows[0] == ("no lever", "4.00", "2.00")
    assert table.rows[1] == ("a=on", "3.00", "1.50")
    assert len(table.rows) == len(record.evidence)
    assert table.title in stack_reports.markdown(stated)
    refused = stated.model_copy(update={"status": "refused", "faults": (("inputs-differ", "x"),)})
    assert floor_view.tables(refused) == ()


def stating(row: str, sample: Sample) -> Sample:
    """The sample with the multiples of its arm: four of no lever, three of the first."""
    steps = 4.0 if sample.arm == "ref" else 3.0 if row == "a=on" else 2.0
    facts = {"decode/floor_ratio/c1": steps, "decode/floor_ratio/c8": steps / 2}
    return sample.model_copy(update={"telemetry": facts})


def with_axes(record: StackRecord, *names: str) -> StackRecord:
    """The record with further axes, on each of which every row has 3 MiB."""
    axes = tuple(Axis(name, "bytes", higher_is_better=False) for name in names)
    values = tuple({**row, **dict.fromkeys(names, 3.0 * 2**20)} for row in record.analysis.values)
    analysis = record.analysis.model_copy(update={"values": values})
    return record.model_copy(update={"axes": (*record.axes, *axes), "analysis": analysis})


def test_a_terminal_of_100_columns_breaks_no_word_of_a_stack(
    capsys: pytest.CaptureFixture[str],
) -> None:
    record = with_axes(measured(), "train/mfu_true", "train/mfu_matmul", "memory/peak_bytes")
    levers = tuple(
        LeverSetting(lever=name, setting="on") for name in ("a_long_name" * 3, "b" * 30, "c" * 25)
    )
    rows = tuple(one.model_copy(update={"levers": levers}) for one in record.spec.rows)
    evidence = tuple(
        one.model_copy(update={"row": row}) for one, row in zip(record.evidence, rows, strict=False)
    )
    print_stack(Console(width=100), record.model_copy(update={"evidence": evidence}))
    said = capsys.readouterr().out
    for word in ("step_ms", "mfu_matmul", "peak_bytes", "so far", "lossless", "passed", "samples"):
        assert word in said


def test_an_interrupted_stack_shows_no_empty_table() -> None:
    record = measured().model_copy(
        update={"status": "interrupted", "evidence": (), "stopped": "", "analysis": Analysis()}
    )
    shown = view(record)
    assert not shown.tables
    assert dict(shown.facts)["blocks"] == "0 of 6 count"
    assert f"--resume {record.stack_id}" in shown.refusal


def test_bytes_carry_their_unit_in_a_cell() -> None:
    table = view(with_axes(measured(), "memory/peak_bytes")).tables[0]
    assert table.columns[4] == "peak_bytes"
    assert table.rows[0][4] == "3.00 MiB"


def test_the_page_is_self_contained_and_has_the_waterfall() -> None:
    page = stack_reports.page(measured())
    assert page.startswith("<!doctype html>")
    assert page.count("<svg") == 2
    assert "<script" not in page
    assert "src=" not in page


def test_a_refused_stack_shows_why_and_no_speed() -> None:
    broken = CheckResult(
        name="stack",
        status="failed",
        passed=1,
        total=2,
        worst="gradient error 3x",
        strongest=ParityClass.BROKEN,
    )
    record = measured()
    report = ParityReport(checks=(broken,), claimed=ParityClass.LOSSLESS)
    evidence = tuple(
        one.model_copy(update={"samples": (), "parity": report if one.row.levers else None})
        for one in record.evidence
    )
    faults = (("parity-failed", "a=on: parity failed: gradient error 3x"),)
    refused = StackRecord.model_validate(
        {
            **dict(record),
            "status": "refused",
            "evidence": evidence,
            "faults": faults,
            "analysis": type(record.analysis)(),
        }
    )
    text = stack_reports.markdown(refused)
    assert "no speed is shown: parity-failed" in text
    assert "Waterfall" not in text
    assert "gradient error 3x" in text
    assert not plots(refused)


def test_the_training_curves_of_the_whole_stand_in_its_page() -> None:
    record = measured()
    series = {"reference": (2.0, 1.5, 1.2), "candidate": (2.0, 1.5, 1.21)}
    series |= {"reference repeat 1": (2.0, 1.5, 1.2), "reference reordered 1": (2.0, 1.51, 1.2)}
    (check,) = factory.passed().checks
    report = ParityReport(
        checks=(check.model_copy(update={"curves": series}),), claimed=ParityClass.LOSSLESS
    )
    evidence = tuple(
        one.model_copy(update={"parity": report}) if one.row.levers else one
        for one in record.evidence
    )
    drawn = plots(record.model_copy(update={"evidence": evidence}))
    assert [one.name for one in drawn] == ["waterfall", "gains", "curves_stack"]
    assert "3 steps" in drawn[-1].caption


def test_a_record_with_a_broken_parity_and_samples_cannot_be_built() -> None:
    record = measured()
    broken = CheckResult(
        name="stack", status="failed", passed=0, total=1, strongest=ParityClass.BROKEN
    )
    report = ParityReport(checks=(broken,), claimed=ParityClass.LOSSLESS)
    evidence = tuple(one.model_copy(update={"parity": report}) for one in record.evidence)
    with pytest.raises(ValueError, match="no speed may be recorded"):
        StackRecord.model_validate({**dict(record), "evidence": evidence})


def test_a_refused_record_says_why_and_only_a_measured_one_has_gains() -> None:
    with pytest.raises(ValueError, match="says why"):
        measured(status="refused")
    with pytest.raises(ValueError, match="shows no gain"):
        measured(status="running")


def test_an_inert_lever_is_said_beside_the_table() -> None:
    record = measured()
    inert = tuple(one.model_copy(update={"inert": True}) for one in record.analysis.gains)
    analysis = record.analysis.model_copy(update={"gains": inert})
    shown = view(record.model_copy(update={"analysis": analysis}))
    assert "a is inert" in shown.warnings[0]
    assert "inert" in shown.tables[0].rows[1][-3]


def test_the_mirror_gets_the_rows_by_step_and_each_gain_with_its_interval() -> None:
    record = measured()
    found = stack_tracking.payload(record, "text")
    assert found.experiment == "stack/flow"
    assert found.parent.role == "stack"
    rates = {p.step: p.value for p in found.parent.metrics if p.key == RATE.name}
    assert sorted(rates) == [0, 1, 2, 3]
    assert rates[1] / rates[0] == pytest.approx(2.1, abs=0.02)
    gains = {p.key: p.value for p in found.parent.metrics if p.key.startswith("gain_percent/a")}
    assert gains["gain_percent/a/lower"] < gains["gain_percent/a"] < gains["gain_percent/a/upper"]
    assert found == stack_tracking.payload(record, "text")
