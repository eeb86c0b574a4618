from __future__ import annotations

import html.parser
import io
import re

import pytest
from rich.console import Console
from support import records_factory as factory

from experiments import render
from experiments.parity_records import CheckResult, ParityReport
from experiments.render_tables import print_history, print_levers
from experiments.render_terminal import print_verdict
from experiments.requests import HistoryRow, LeverRow, Standing
from experiments.view.verdict import view
from levers.policy import ParityClass

NAMES = sorted(factory.ALL)


def terminal(record, width=80, details=False):
    stream = io.StringIO()
    console = Console(file=stream, width=width, color_system=None, highlight=False)
    print_verdict(console, view(record), details=details)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


@pytest.mark.parametrize("name", NAMES)
def test_the_pull_request_text_is_the_checked_one(name, snapshot):
    assert render.markdown(view(factory.ALL[name]())) == snapshot


@pytest.mark.parametrize("name", NAMES)
def test_the_terminal_text_at_80_columns_is_the_checked_one(name, snapshot):
    assert terminal(factory.ALL[name]()) == snapshot


def test_a_wide_terminal_draws_the_intervals_and_details_add_the_provenance(snapshot):
    assert terminal(factory.default_on(), width=120, details=True) == snapshot


@pytest.mark.parametrize("name", ["default_on", "parity_failed"])
def test_the_html_report_is_the_checked_one(name, snapshot):
    assert render.html(view(factory.ALL[name]())) == snapshot


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_no_line_is_wider_than_the_terminal(name, width):
    lines = terminal(factory.ALL[name](), width, details=True).splitlines()
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("name", NAMES)
def test_the_description_fits_into_an_mlflow_tag(name):
    text = render.description(view(factory.ALL[name]()))
    assert len(text) <= render.DESCRIPTION_LIMIT
    assert view(factory.ALL[name]()).label in text


def test_a_description_that_is_too_long_keeps_the_verdict_and_says_that_it_is_cut():
    checks = tuple(
        CheckResult(name=f"op{i}", status="passed", passed=1, total=1, worst="x" * 300)
        for i in range(60)
    )
    report = ParityReport(checks=checks, claimed=ParityClass.LOSSLESS)
    record = factory.record(factory.default_on().decision, parity=report)
    text = render.description(view(record))
    assert len(text) <= render.DESCRIPTION_LIMIT
    assert text.startswith("### 🟢 **default-ON** `fa2_nsplits_cap=auto` — may ship ON")
    assert text.endswith("among the artifacts of this run.\n")


class _Page(html.parser.HTMLParser):
    """Collects what a page loads, runs, and leaves open."""

    VOID = ("meta", "rect", "line", "circle", "br")

    def __init__(self):
        super().__init__()
        self.open, self.loads, self.tags = [], [], set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.loads += [
            value for name, value in attrs if name in ("src", "href") or name[:2] == "on"
        ]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", NAMES)
def test_the_html_report_loads_nothing_and_runs_nothing(name):
    page = _Page()
    page.feed(render.html(view(factory.ALL[name]()), [("effects", "<?xml?><svg></svg>")]))
    assert page.open == []
    assert page.loads == []
    assert "script" not in page.tags


def test_a_figure_with_a_script_is_refused():
    with pytest.raises(ValueError, match="without scripts"):
        render.html(view(factory.default_on()), [("bad", "<svg><script>x</script></svg>")])


@pytest.mark.parametrize("renderer", [render.markdown, render.html])
def test_text_of_a_failing_process_is_shown_and_never_obeyed(renderer):
    text = renderer(view(factory.out_of_memory()))
    assert "2.10 GiB &lt;of" in text


def test_a_bar_in_a_text_does_not_break_a_table():
    text = render.markdown(view(factory.parity_failed()))
    assert r"D=64 GQA 4 \| 1 token, large means" in text


@pytest.mark.parametrize("name", ["parity_failed", "out_of_memory"])
@pytest.mark.parametrize("renderer", [render.markdown, render.html, render.description])
def test_no_report_shows_a_speed_where_none_was_measured(name, renderer):
    text = renderer(view(factory.ALL[name]()))
    body = re.sub(r"<style>.*?</style>|overhead [\d.]+ %|-[13] %", "", text, flags=re.S)
    assert " tok/s" not in body
    assert "%" not in body.split("Provenance")[0].split("<details>")[0]


def test_the_comment_marker_stays_one_comment_whatever_the_scope_holds():
    assert render.comment_marker("x", "a --> b") == "<!-- levergate x a -> b -->"


def test_lists_show_states_effects_marks_and_broken_plugins(snapshot):
    stream = io.StringIO()
    console = Console(file=stream, width=120, color_system=None, highlight=False)
    states = (("decode, cpu", "ON (unconfirmed)"),)
    print_levers(
        console,
        (
            LeverRow("fa2_nsplits_cap", "Cap the splits.", "off | auto", ("decode",), "X", states),
            LeverRow("lost", broken="ModuleNotFoundError: No module named 'nowhere'"),
        ),
    )
    print_history(
        console,
        (
            HistoryRow(
                run_id="20260304T100000Z-5d3c",
                created_at="2026-03-04T10:00:00+00:00",
                lever="fa2_nsplits_cap",
                ref="off",
                cand="auto",
                workload="decode",
                device_kind="CPU",
                status="decided",
                outcome="default-ON",
                reason="failing-axis-win",
                axis="decode/tok_s/c8",
                effect=0.116,
                lower=0.0935,
                upper=0.139,
                pairs=13,
                standing=Standing(stale="torch 2.13.0 -> 2.14.0"),
            ),
        ),
    )
    print_history(console, ())
    assert "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) == snapshot
