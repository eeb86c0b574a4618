"""When a row is met, TERMINAL or open, when it re-opens, and when it may be closed."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from experiments.campaign.records import CampaignRow, LeverStanding, PathLeft
from experiments.campaign.rules import (
    closed,
    confidence_of,
    doubts_of,
    paths_left,
    reopened,
    ships,
    standing,
    state_of,
)
from experiments.records import Outcome
from levers.errors import UsageError
from tests.support.campaign_factory import C1, C8, axis, lever, row

ON, OFF, CLOSED = Outcome.DEFAULT_ON, Outcome.GATED_OFF, Outcome.TERMINAL
MET, MISSED = axis(C1, 1.02, 1.01, 1.03), axis(C8, 0.96, 0.95, 0.97)
UNSURE = axis(C8, 0.99, 0.97, 1.01)
DECIDED = (lever("a", ON), lever("b", OFF), lever("c", CLOSED))


@pytest.mark.parametrize(
    ("lower", "upper", "found"),
    [(1.0, 1.1, "met"), (0.9, 0.999, "missed"), (0.99, 1.01, "undecided"), (0.9, 1.0, "undecided")],
)
def test_a_target_is_met_or_missed_by_its_whole_interval(
    lower: float, upper: float, found: str
) -> None:
    assert standing(lower, upper) == found


def test_a_row_is_met_when_every_target_is_reached_even_with_an_open_lever() -> None:
    state = state_of([MET], [lever("a", None)])
    assert state.state == "met"
    assert "all 1 targets" in state.why


def test_a_row_is_terminal_when_a_target_is_missed_and_every_lever_has_its_verdict() -> None:
    state = state_of([MET, MISSED], DECIDED)
    assert state.state == "TERMINAL"
    assert C8 in state.why
    assert C1 not in state.why


def test_an_open_lever_keeps_a_missed_row_open_and_is_named() -> None:
    state = state_of([MET, MISSED], [*DECIDED, lever("d", None)])
    assert (state.state, state.why) == ("open", "without a valid verdict here: d")


def test_a_lever_that_cannot_run_here_does_not_keep_the_row_open_and_is_a_path_not_exhausted() -> (
    None
):
    away = lever("graph", None, state="unavailable", why="it needs CUDA")
    assert state_of([MISSED], [*DECIDED, away]).state == "TERMINAL"
    (left,) = paths_left([], [*DECIDED, away])
    assert (left.name, left.state, left.reason) == ("graph", "unavailable", "it needs CUDA")


def test_a_row_of_which_no_lever_can_run_is_open_since_nothing_was_tried() -> None:
    away = lever("graph", None, state="unavailable", why="it needs CUDA")
    state = state_of([MISSED], [away])
    assert state.state == "open"
    assert "nothing was tried" in state.why


def test_a_lever_of_the_catalog_that_the_file_does_not_name_keeps_the_row_open() -> None:
    state = state_of([MISSED], DECIDED, unnamed=("newcomer",))
    assert state.state == "open"
    assert "newcomer" in state.why


def test_without_a_binding_run_nothing_is_said_of_what_ships() -> None:
    state = state_of([MET], DECIDED, unbound="no binding run")
    assert (state.state, state.why) == ("open", "what ships was not measured: no binding run")


def test_an_undecided_target_beside_met_ones_asks_for_more_blocks() -> None:
    state = state_of([MET, UNSURE], DECIDED)
    assert state.state == "open"
    assert "more blocks" in state.why


def test_an_undecided_target_beside_a_missed_one_is_a_doubt_of_a_terminal_row() -> None:
    axes = [MISSED, UNSURE.model_copy(update={"axis": C1})]
    assert state_of(axes, DECIDED).state == "TERMINAL"
    assert any(C1 in text for text in doubts_of(axes, DECIDED, (), residual=True))


def test_an_axis_that_was_not_measured_keeps_the_row_open() -> None:
    unmeasured = axis(C8, None, None, None)
    assert state_of([MET, unmeasured], DECIDED).why == f"not measured: {C8}"


def test_doubts_lower_the_confidence_and_an_open_row_claims_nothing() -> None:
    weak = lever("a", ON, default_state="on (unconfirmed)")
    none = lever("b", ON, credited="none")
    paths = [PathLeft(name="gemm", state="unbuilt", reason="nobody built it")]
    doubts = doubts_of([MISSED], [weak, none], paths, residual=False)
    assert len(doubts) == 4
    assert confidence_of("TERMINAL", doubts) == "low"
    assert confidence_of("TERMINAL", doubts[:1]) == "moderate"
    assert confidence_of("met", ()) == "high"
    assert confidence_of("open", ()) == "none"


def test_what_ships_are_the_levers_that_are_on() -> None:
    assert ships(DECIDED) == ("a=on",)


# --- re-opening -----------------------------------------------------------------------------------


TERMINAL = row("TERMINAL", (MET, MISSED), DECIDED, versions={"torch": "2.11"})


def opened(levers: tuple[LeverStanding, ...] = DECIDED, **changes: object) -> CampaignRow:
    return row("open", (MET, MISSED), levers, **{"versions": {"torch": "2.11"}, **changes})


def test_a_row_opens_again_when_a_lever_is_added_to_the_file_or_the_catalog() -> None:
    more = opened((*DECIDED, lever("d", None)))
    assert reopened(TERMINAL, more) == ("d was added to the file",)
    assert reopened(TERMINAL, opened(unnamed=("e",))) == ("e was added to the catalog",)


def test_a_row_opens_again_when_the_stack_changes() -> None:
    stale = lever("a", None, why="on is stale: torch 2.11 -> 2.13")
    now = opened((stale, *DECIDED[1:]), versions={"torch": "2.13"})
    assert reopened(TERMINAL, now) == (
        "the verdict of a fell: on is stale: torch 2.11 -> 2.13",
        "the stack changed: torch 2.11 -> 2.13",
    )


def test_a_row_opens_again_when_a_verdict_is_invalidated() -> None:
    fallen = lever("b", None, why="on: its verdict was invalidated")
    now = opened((DECIDED[0], fallen, DECIDED[2]))
    assert reopened(TERMINAL, now) == ("the verdict of b fell: on: its verdict was invalidated",)


def test_a_row_opens_again_when_a_lever_can_run_that_could_not() -> None:
    away = lever("g", None, state="unavailable", why="it needs CUDA")
    before = row("TERMINAL", (MISSED,), (*DECIDED, away))
    now = opened((*DECIDED, lever("g", None)))
    assert reopened(before, now) == ("g can run here now",)


def test_a_row_opens_again_when_the_set_that_ships_was_not_measured() -> None:
    assert reopened(TERMINAL, opened(unbound="no binding run of what ships now (a=on)")) == (
        "no longer bound: no binding run of what ships now (a=on)",
    )


def test_another_file_and_a_lost_target_are_reasons_too() -> None:
    assert reopened(TERMINAL, opened(file_digest="other")) == ("the campaign file changed",)
    assert reopened(TERMINAL, opened(why="more blocks tell")) == ("more blocks tell",)


def test_the_reason_stays_while_the_row_is_open_and_a_first_row_has_none() -> None:
    again = opened().model_copy(update={"reopened": ("d was added to the file",)})
    assert reopened(again, opened()) == ("d was added to the file",)
    assert reopened(None, opened()) == ()
    assert reopened(TERMINAL, TERMINAL) == ()


# --- closing --------------------------------------------------------------------------------------


def test_a_terminal_row_is_closed_with_a_name_and_a_moment() -> None:
    done = closed(TERMINAL, name="ada", at="2026-11-29T23:00:00+00:00")
    assert (done.closed_by, done.state) == ("ada", "TERMINAL")


def test_an_open_row_is_not_closed_and_the_cure_names_what_is_left() -> None:
    left = opened((*DECIDED, lever("d", None)), file="rows/x.toml")
    with pytest.raises(UsageError) as refused:
        closed(left, name="ada", at="now")
    assert "is open" in refused.value.message
    assert "decline d in rows/x.toml" in refused.value.cure
    assert "levergate campaign run row-x" in refused.value.cure


# --- records that cannot be built -----------------------------------------------------------------


def test_a_row_that_is_called_met_or_terminal_without_being_so_cannot_be_built() -> None:
    with pytest.raises(ValidationError, match="is not met"):
        row("met", (MET, MISSED), DECIDED)
    with pytest.raises(ValidationError, match="not TERMINAL"):
        row("TERMINAL", (MET,), DECIDED)
    with pytest.raises(ValidationError, match="not TERMINAL"):
        row("TERMINAL", (MISSED,), (lever("d", None),))
    with pytest.raises(ValidationError, match="cannot be closed"):
        row("open", (MISSED,), DECIDED, closed_at="now")


def test_a_lever_is_decided_by_a_verdict_alone_and_says_why_it_is_not() -> None:
    with pytest.raises(ValidationError, match="with the verdict inconclusive"):
        lever("a", Outcome.INCONCLUSIVE, state="decided")
    with pytest.raises(ValidationError, match="does not say why"):
        lever("a", None, why="")
