from __future__ import annotations

import io

import pytest
from rich.console import Console
from support import records_factory as factory

from experiments import progress
from experiments.progress import TerminalListener, WarningsOnly
from levers.errors import UsageError


def listener(*, terminal=False, ask=None):
    stream = io.StringIO()
    console = Console(file=stream, width=100, force_terminal=terminal, color_system=None)
    return TerminalListener(console, ask=ask), stream


def test_a_check_shows_passed_of_total_and_its_worst_case():
    heard, stream = listener()
    for check in factory.CHECKS:
        heard.on_check(check)
    lines = stream.getvalue().splitlines()
    assert "op" in lines[0]
    assert "114/114     4.2 s  error ratio 1.00 at D=128 GQA 4" in lines[0]
    assert "did not run" in lines[3]
    assert "memcheck needs CUDA" in lines[3]


def test_plain_lines_come_at_most_every_ten_seconds_and_at_the_end(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    heard, stream = listener()
    for done in range(1, 81):
        heard.on_sample(done, 80, factory.EFFECTS, 90.0)
        now[0] += 1.0
    lines = stream.getvalue().splitlines()
    assert len(lines) == 9
    assert lines[0].strip() == (
        "sample 1/80, at most 1 min 30 s left; so far c1 +17.0 %, c2 +4.1 %, c4 +0.10 %"
    )
    assert "80/80" in lines[-1]


def test_work_without_a_result_yet_is_a_line_of_a_log_and_the_live_line_of_a_terminal():
    heard, stream = listener()
    heard.on_progress("op of the candidate: 40 s so far")
    assert stream.getvalue() == "  op of the candidate: 40 s so far\n"
    heard, stream = listener(terminal=True)
    heard.on_stage("parity", "is it right?")
    heard.on_progress("op of the [candidate]: 40 s so far")
    heard.close()
    assert "op of the [candidate]: 40 s so far" in stream.getvalue()


def test_a_look_shows_effects_with_their_intervals():
    heard, stream = listener()
    heard.on_look(factory.default_on().looks[-1])
    assert "look at 13 pairs: c1 +17.0 % [14.8, 19.2], c2 +4.1 % [2.2, 6.0]" in stream.getvalue()


def test_square_brackets_in_a_text_are_text():
    heard, stream = listener()
    heard.on_warning("device [bold]busy[/]")
    heard.on_stage("measure", "[red]")
    assert stream.getvalue() == "! device [bold]busy[/]\nmeasure [red]\n"


def test_a_long_run_is_asked_for_and_a_no_measures_nothing():
    asked = []
    heard, stream = listener(ask=lambda question: bool(asked.append(question)))
    heard.on_estimate(120.0, 40)
    assert asked == []
    with pytest.raises(UsageError, match="nothing was measured"):
        heard.on_estimate(4800.0, 40)
    assert asked == ["Measure at most 40 pairs, about 1 h 20 min?"]
    assert "estimate: at most 40 pairs, about 2 min 00 s" in stream.getvalue()


def test_nobody_is_asked_where_nobody_is_there():
    heard, stream = listener()
    heard.on_estimate(4800.0, 40)
    assert "about 1 h 20 min" in stream.getvalue()


def test_the_live_line_ends_with_its_stage():
    heard, stream = listener(terminal=True)
    heard.on_stage("measure")
    heard.on_sample(3, 80, factory.EFFECTS, None)
    heard.on_warning("a warning beside the live line")
    heard.close()
    heard.close()
    assert "a warning beside the live line" in stream.getvalue()


def test_where_the_answer_is_json_only_warnings_are_said_and_whole():
    stream = io.StringIO()
    heard = WarningsOnly(Console(file=stream, width=40, color_system=None))
    heard.on_stage("measure", "x")
    heard.on_estimate(9e9, 40)
    heard.on_sample(1, 80, (), 3.0)
    text = f"waiting for the device, which is held by [ab x] {'of somebody ' * 9}".strip()
    heard.on_warning(text)
    assert stream.getvalue() == f"! {text}\n"
