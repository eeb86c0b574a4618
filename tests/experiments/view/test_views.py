from __future__ import annotations

import math
import shlex

import pytest
from support import records_factory as factory

from experiments.parsing import budget_seconds
from experiments.records import Effect
from experiments.requests import FalseVerdictRate, Standing
from experiments.spec import LeverSetting
from experiments.view.axes import WIDTH, axis_rows, clear_text, matters_text
from experiments.view.facts import reproduce_command
from experiments.view.parity import plan_rows
from experiments.view.verdict import view
from levers.policy import GatingPolicy, Guard

POLICY = GatingPolicy(primaries=("x",))


def test_the_headline_has_outcome_lever_action_reason_and_effect_with_interval():
    assert view(factory.default_on()).headline == (
        "default-ON fa2_nsplits_cap=auto - may ship ON "
        "(failing-axis-win: decode/tok_s/c8 +12.3 % [9.8, 14.9])"
    )


def test_beside_a_verdict_stand_effect_threshold_pairs_noise_visible_and_false_rate():
    rate = FalseVerdictRate(0.024, 0.011, 0.045, "2026-03-01T08:00:00+00:00", stale=True)
    facts = dict(view(factory.default_on(), Standing(calibration=rate)).facts)
    assert facts == {
        "effect": "decode/tok_s/c8 +12.3 % [9.8, 14.9]",
        "worth keeping": "from 1 % (the practical threshold)",
        "pairs used": "13 of at most 40 (look 3 of 6), 1 pair lost",
        "noise s": "1.8 % (c8)",
        "smallest visible": "1.9 %",
        "false verdicts": "2.4 % [1.1, 4.5] (A/A of 2026-03-01 08:00, STALE)",
    }


@pytest.mark.parametrize("name", ["parity_failed", "out_of_memory", "not_engaged"])
def test_no_speed_is_shown_where_none_may_be(name):
    shown = view(factory.ALL[name]())
    assert shown.axes == ()
    assert shown.states == ()
    assert shown.no_speed
    assert [label for label, _ in shown.facts] == ["false verdicts"]


def test_a_class_weaker_than_demanded_hides_the_speed_that_was_recorded():
    decision = factory.parity_failed().decision
    shown = view(factory.record(decision))
    assert shown.axes == ()
    assert "%" not in shown.because


def test_a_small_clear_effect_is_called_better_and_within_the_threshold():
    effect = factory.effect("x", 0.3, 0.2, 0.4)
    assert clear_text(effect) == "better"
    assert matters_text(effect, POLICY) == "within ±1 %"


@pytest.mark.parametrize(
    ("numbers", "clear", "matters"),
    [
        ((4, 3, 5), "better", "gain > 1 %"),
        ((-4, -5, -3), "worse", "loss > 1 %"),
        ((3.3, -3, 9.6), "not clear", "open at 1 %"),
        ((0, -0.4, 0.4), "not clear", "within ±1 %"),
        ((1.2, 0.5, 1.9), "better", "open at 1 %"),
    ],
)
def test_sign_and_size_are_said_apart(numbers, clear, matters):
    effect = factory.effect("x", *numbers)
    assert (clear_text(effect), matters_text(effect, POLICY)) == (clear, matters)


def test_the_deciding_axis_comes_first_and_inert_and_reported_axes_last_of_their_kind():
    rows = axis_rows(factory.default_on())
    assert [row.axis for row in rows][:1] == ["decode/tok_s/c8"]
    assert [row.axis for row in rows if row.inert] == ["decode/tok_s/c4"]
    assert rows[-1].role == "reported"


def test_a_guard_says_whether_it_is_proven_broken_or_open():
    regressed = {row.axis: row.guard for row in axis_rows(factory.regression())}
    assert regressed["decode/tok_s/c8"] == "broken -1 %"
    assert regressed["memory/peak_bytes"] == "holds -1 %"
    noisy = {row.axis: row.guard for row in axis_rows(factory.inconclusive())}
    assert noisy["decode/ttft_ms/p95"] == "open -3 %"


def test_a_ceiling_shows_the_share_of_the_capacity_that_was_used():
    policy = GatingPolicy(
        primaries=("decode/tok_s/c*",), guards=(Guard("memory/peak_bytes", ceiling=0.75),)
    )
    record = factory.record(
        factory.default_on().decision,
        spec=factory.spec(policy=policy),
        capacities={"memory/peak_bytes": 8 * 2**30},
    )
    guards = {row.axis: row.guard for row in axis_rows(record)}
    assert guards["memory/peak_bytes"] == "33.1 % of capacity, ≤ 75.0 %"


def test_an_infinite_interval_is_drawn_to_the_edges_and_said():
    endless = Effect(
        axis="decode/tok_s/c1",
        kind="sequence",
        units=3,
        estimate=0.01,
        lower=-math.inf,
        upper=math.inf,
        sd=0.01,
        nominal_p=1.0,
    )
    row = axis_rows(factory.record(factory.inconclusive().decision, effects=(endless,)))[0]
    assert row.interval == "[-inf, inf]"
    assert (row.bar.lower, row.bar.upper) == (0, WIDTH)


def test_every_mark_of_the_registry_stands_beside_the_verdict():
    standing = Standing(
        stale="torch 2.13.0 -> 2.14.0",
        unbound="fused_chain went ON",
        invalidated="the op check had no power",
        override="ON by R. Ker: customer demo",
    )
    marks = view(factory.default_on(), standing).marks
    assert [mark.split(":")[0] for mark in marks] == [
        "INVALIDATED",
        "OVERRIDDEN",
        "STALE",
        "UNBOUND",
        "UNCONFIRMED",
    ]


def test_an_invalidated_verdict_ships_nothing():
    shown = view(factory.default_on(), Standing(invalidated="the op check had no power"))
    assert "may ship" not in shown.headline
    assert "may not be relied on" in shown.headline


def test_a_confirmed_verdict_is_not_called_unconfirmed():
    marks = view(factory.default_on(), Standing(confirmed="20260305T081500Z-11aa")).marks
    assert marks == ("confirmed by 20260305T081500Z-11aa",)


def test_a_screen_is_labelled_as_no_verdict():
    shown = view(factory.default_on().model_copy(update={"kind": "screen"}))
    assert shown.label == "SCREEN: an ordering of candidates, no verdict"
    assert "may ship" not in shown.headline
    assert shown.tone == "open"


def test_an_inconclusive_run_says_what_would_settle_it():
    facts = dict(view(factory.inconclusive()).facts)
    assert facts["would settle it"] == "61 further pairs, about 9 min 30 s"


def test_a_detail_is_a_sentence_and_an_axis_keeps_its_name():
    decision = factory.inconclusive().decision
    assert view(factory.inconclusive()).detail.startswith("Undecided: guard decode/ttft")
    named = decision.model_copy(update={"detail": "decode/tok_s/c1 has no value in some pair"})
    shown = view(factory.record(named)).detail
    assert shown == "decode/tok_s/c1 has no value in some pair."


def test_an_interrupted_run_says_how_to_go_on():
    shown = view(factory.interrupted())
    assert shown.label == "interrupted"
    assert shown.cure == "Go on with --resume 20260304T100000Z-5d3c."


def test_many_deciding_axes_are_counted_in_the_headline():
    assert view(factory.terminal()).because.endswith(", 1 more")


def test_the_reproduce_command_asks_for_what_was_asked_and_not_for_digests():
    assert reproduce_command(factory.default_on()) == (
        "levergate ab fa2_nsplits_cap --ref off --cand auto --workload decode --device cpu "
        "--seed 7 --oracle sdpa --pairs 40 --set model=tiny --set sms=48"
    )


def test_the_reproduce_command_asks_for_ranks_by_their_option():
    record = factory.default_on()
    parameters = {**record.spec.parameters, "ranks": 2, "zero": "deepspeed"}
    spec = record.spec.model_copy(update={"parameters": parameters})
    command = reproduce_command(record.model_copy(update={"spec": spec}))
    assert " --ranks 2 " in command
    assert "--set zero=deepspeed" in command
    assert "ranks=2" not in command


def test_the_reproduce_command_asks_for_all_that_changes_the_design():
    record = factory.default_on()
    stack = (LeverSetting(lever="fused_modulate", setting="on"),)
    design = {"sequential": "anytime", "budget_s": 5400.5, "stack": stack}
    spec = record.spec.model_copy(update=design)
    words = shlex.split(reproduce_command(record.model_copy(update={"spec": spec})))
    options = dict(zip(words[3::2], words[4::2], strict=True))
    assert options["--sequential"] == "anytime"
    assert budget_seconds(options["--budget"]) == 5400.5
    assert options["--with"] == "fused_modulate=on"


def test_equal_plans_are_inert_and_an_unseen_plan_is_said():
    record = factory.default_on()
    only_ref = record.model_copy(update={"witnesses": record.witnesses[:1]})
    assert {row.cand for row in plan_rows(only_ref)} == {"not seen"}
    engaged = {row.axis: row.engaged for row in plan_rows(record)}
    assert engaged["decode/tok_s/c4"] == "inert: same path"
    assert engaged["decode/tok_s/c8"] == "engaged"


def test_axes_on_which_the_same_things_ran_share_a_row():
    record = factory.default_on()
    ref, cand = record.witnesses
    axes = ("train/tok_s", "train/step_ms", "memory/peak_bytes")

    def with_plans(*differing: str):
        plans = {axis: "replayed" if axis in differing else "launched" for axis in axes}
        plain = ref.model_copy(update={"plans": dict.fromkeys(axes, "launched")})
        changed = cand.model_copy(update={"plans": plans})
        return record.model_copy(update={"witnesses": (plain, changed)})

    (row,) = plan_rows(with_plans(*axes))
    assert (row.axis, row.ref, row.cand, row.engaged) == (
        "all 3 axes",
        "launched",
        "replayed",
        "engaged",
    )
    rows = plan_rows(with_plans("train/tok_s", "train/step_ms"))
    assert [(one.axis, one.engaged) for one in rows] == [
        ("train/tok_s, train/step_ms", "engaged"),
        ("memory/peak_bytes", "inert: same path"),
    ]
