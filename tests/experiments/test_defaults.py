from __future__ import annotations

from typing import Any

from support import records_factory as factory

from experiments.defaults import Current, Override, derive_state, standing_of
from experiments.evidence import Evidence, Scope
from experiments.on_set import on_set
from experiments.records import Outcome

SCOPE = Scope.of(factory.default_on())
VERSIONS = {"torch": "2.13.0", "python": "3.11.9", "triton": "3.9.0"}


def run(number: int, **changes: Any) -> Evidence:
    fields: dict[str, Any] = {
        "run_id": f"run-{number}",
        "scope": SCOPE,
        "outcome": Outcome.DEFAULT_ON,
        "reason": "failing-axis-win",
        "created_at": f"2026-03-{number:02d}T10:00:00+00:00",
        "boot_id": "boot",
        "place": "bench-1",
        "versions": VERSIONS,
        "lever_digest": "a1b2",
    }
    return Evidence(**{**fields, **changes})


def off(number: int, **changes: Any) -> Evidence:
    return run(number, outcome=Outcome.GATED_OFF, reason="regression", **changes)


def test_without_a_verdict_nothing_is_on() -> None:
    state = derive_state(SCOPE, [])
    assert (state.state, state.ships, state.run_id) == ("undecided", "off", "")


def test_a_first_default_on_ships_but_is_unconfirmed() -> None:
    state = derive_state(SCOPE, [run(1)])
    assert (state.state, state.ships, state.flags) == ("on", "auto", ("unconfirmed",))
    assert state.label == "on (unconfirmed)"


def test_a_second_run_on_another_day_confirms() -> None:
    state = derive_state(SCOPE, [run(2), run(1)])
    assert (state.run_id, state.confirmed_by, state.flags) == ("run-2", "run-1", ())


def test_a_second_run_on_the_same_day_boot_and_device_confirms_nothing() -> None:
    again = run(1, run_id="run-1b", created_at="2026-03-01T11:00:00+00:00")
    assert derive_state(SCOPE, [run(1), again]).flags == ("unconfirmed",)


def test_another_boot_or_device_on_the_same_day_confirms() -> None:
    for change in ({"boot_id": "other"}, {"place": "bench-2"}):
        again = run(1, run_id="z", created_at="2026-03-01T11:00:00+00:00", **change)
        assert derive_state(SCOPE, [run(1), again]).confirmed_by == "run-1"


def test_a_run_on_another_stack_or_with_other_levers_on_confirms_nothing() -> None:
    for change in (
        {"versions": {**VERSIONS, "torch": "2.14.0"}},
        {"lever_digest": "ffff"},
        {"on_set": ("other=on",)},
    ):
        assert derive_state(SCOPE, [run(1), run(2, **change)]).confirmed_by == ""


def test_a_contrary_verdict_between_two_agreeing_ones_breaks_the_confirmation() -> None:
    state = derive_state(SCOPE, [run(1), off(2), run(3)])
    assert (state.state, state.confirmed_by) == ("on", "")


def test_the_latest_verdict_decides() -> None:
    assert derive_state(SCOPE, [run(1), off(2)]).state == "off"
    assert derive_state(SCOPE, [off(1), run(2)]).state == "on"


def test_an_invalidated_verdict_gives_way_to_the_one_before_and_says_so() -> None:
    state = derive_state(SCOPE, [off(1), run(2, invalidated="the oracle ran eager")])
    assert (state.state, state.run_id, state.flags) == ("off", "run-1", ("invalidated",))
    assert "the oracle ran eager" in state.notes[0]


def test_the_only_verdict_invalidated_leaves_the_lever_off() -> None:
    state = derive_state(SCOPE, [run(1, invalidated="bug in a check")])
    assert (state.state, state.ships) == ("undecided", "off")


def test_a_changed_stack_makes_a_verdict_stale_and_names_the_change() -> None:
    now = Current(versions={**VERSIONS, "torch": "2.14.0"})
    state = derive_state(SCOPE, [run(1), run(2)], current=now)
    assert state.flags == ("stale",)
    assert "torch 2.13.0 -> 2.14.0" in state.notes[0]
    assert not state.applies


def test_a_package_of_some_runs_makes_only_those_stale() -> None:
    now = Current(versions={**VERSIONS, "deepspeed": "0.20.0"})
    assert derive_state(SCOPE, [run(1), run(2)], current=now).flags == ()
    bound = {**VERSIONS, "deepspeed": "0.19.8"}
    state = derive_state(SCOPE, [run(1, versions=bound)], current=now)
    assert "deepspeed 0.19.8 -> 0.20.0" in " ".join(state.notes)
    gone = derive_state(SCOPE, [run(1, versions=bound)], current=Current(versions=VERSIONS))
    assert "deepspeed 0.19.8 -> absent" in " ".join(gone.notes)


def test_a_changed_lever_source_makes_a_verdict_stale() -> None:
    now = Current(lever_digests={"fa2_nsplits_cap": "ffff"})
    assert "stale" in derive_state(SCOPE, [run(1)], current=now).flags


def test_a_changed_on_set_makes_a_verdict_unbound_but_not_the_lever_itself() -> None:
    assert "unbound" in derive_state(SCOPE, [run(1)], current=Current(on_set=("b=on",))).flags
    own = Current(on_set=("fa2_nsplits_cap=auto",))
    assert "unbound" not in derive_state(SCOPE, [run(1)], current=own).flags


def test_the_label_says_beside_which_levers_the_verdict_was_measured() -> None:
    state = derive_state(SCOPE, [run(1, on_set=("a=on", "b=2"))])
    assert state.label_beside == "on beside a=on, b=2 (unconfirmed)"
    assert state.label == "on (unconfirmed)"
    assert derive_state(SCOPE, [run(1)]).label_beside == "on (unconfirmed)"
    said = Override(state="off", name="Ada", reason="customer freeze", at="2026-03-05")
    assert derive_state(SCOPE, [run(1, on_set=("a=on",))], said).label_beside.startswith("off (")


def test_what_the_verdicts_beside_other_levers_say_otherwise_is_told() -> None:
    beside = off(2, on_set=("a=on",))
    state = derive_state(SCOPE, [run(1), beside])
    assert (state.state, state.run_id) == ("off", "run-2")
    told = "otherwise: beside no other lever run run-1 is default-ON"
    assert told in state.remarks
    turned = derive_state(SCOPE, [beside, run(3)])
    assert turned.otherwise == ("beside a=on run run-2 is gated-OFF",)
    assert derive_state(SCOPE, [run(1), off(2), off(3, on_set=("a=on",))]).otherwise == ()
    for apart in ({"lever_digest": "ffff"}, {"versions": {"torch": "1"}}, {"invalidated": "x"}):
        assert derive_state(SCOPE, [run(1, **apart), beside]).otherwise == ()


def test_an_override_decides_and_shows_what_the_verdicts_say() -> None:
    said = Override(state="off", name="Ada", reason="customer freeze", at="2026-03-05")
    state = derive_state(SCOPE, [run(1), run(2)], said)
    assert (state.state, state.ships, state.flags) == ("off", "off", ("overridden",))
    assert state.notes == ("off by Ada: customer freeze (the verdicts say on)",)


def test_a_withdrawn_override_leaves_the_verdict() -> None:
    said = Override(state="as-decided", name="Ada", reason="freeze is over", at="2026-03-06")
    state = derive_state(SCOPE, [run(1), run(2)], said)
    assert (state.state, state.override, state.flags) == ("on", None, ())


def test_the_on_set_takes_one_setting_a_lever_and_names_what_it_leaves_out() -> None:
    three = SCOPE.model_copy(update={"setting": "3"})
    stale = Scope(**{**SCOPE.model_dump(), "lever": "old_lever", "setting": "on"})
    now = Current(versions=VERSIONS)
    found = on_set(
        [
            derive_state(SCOPE, [run(1)], current=now),
            derive_state(three, [run(2, scope=three)], current=now),
            derive_state(stale, [run(3, scope=stale, versions={"torch": "2.0"})], current=now),
        ]
    )
    assert [str(one) for one in found.settings] == ["fa2_nsplits_cap=3"]
    assert {name for name, _ in found.left_out} == {"fa2_nsplits_cap=auto", "old_lever=on"}


def test_a_verdict_beside_others_puts_nothing_on_where_they_are_not_on() -> None:
    other = Scope(**{**SCOPE.model_dump(), "lever": "other", "setting": "on"})
    mine = derive_state(SCOPE, [run(2, on_set=("other=on",))])
    found = on_set([mine])
    assert found.settings == ()
    assert found.left_out == (("fa2_nsplits_cap=auto", "measured beside other=on, not on here"),)
    both = on_set([mine, derive_state(other, [run(1, scope=other)])])
    assert [str(one) for one in both.settings] == ["fa2_nsplits_cap=auto", "other=on"]
    gone = on_set([mine, derive_state(other, [off(1, scope=other)])])
    assert gone.settings == ()


def test_an_earlier_setting_that_was_measured_alone_stays_where_a_later_one_was_not() -> None:
    three = SCOPE.model_copy(update={"setting": "3"})
    later = derive_state(three, [run(2, scope=three, on_set=("other=on",))])
    found = on_set([derive_state(SCOPE, [run(1)]), later])
    assert [str(one) for one in found.settings] == ["fa2_nsplits_cap=auto"]
    assert [name for name, _ in found.left_out] == ["fa2_nsplits_cap=3"]


def test_what_was_measured_beside_a_lever_that_is_left_out_is_left_out_too() -> None:
    second, third = (
        Scope(**{**SCOPE.model_dump(), "lever": name, "setting": "on"}) for name in "bc"
    )
    states = [
        derive_state(second, [run(2, scope=second, on_set=("absent=on",))]),
        derive_state(third, [run(3, scope=third, on_set=("b=on",))]),
    ]
    assert on_set(states).settings == ()
    said = Override(state="on", name="Ada", reason="measured by hand", at="2026-03-05")
    applied = derive_state(second, [run(2, scope=second, on_set=("absent=on",))], said)
    assert [str(one) for one in on_set([applied, states[1]]).settings] == ["b=on", "c=on"]


def test_a_verdict_of_one_setting_over_another_puts_nothing_on() -> None:
    against_three = SCOPE.model_copy(update={"ref": "3"})
    state = derive_state(against_three, [run(1, scope=against_three)])
    assert state.state == "on"
    assert on_set([state]).settings == ()


def test_a_person_may_apply_a_stale_verdict() -> None:
    said = Override(state="on", name="Ada", reason="same kernels", at="2026-03-05")
    state = derive_state(SCOPE, [run(1)], said, Current(versions={"torch": "2.14.0"}))
    assert "stale" in state.flags
    assert [str(one) for one in on_set([state]).settings] == ["fa2_nsplits_cap=auto"]


def test_the_scope_key_ignores_the_order_of_parameters_and_nothing_else() -> None:
    turned = dict(reversed(list(SCOPE.parameters.items())))
    assert SCOPE.model_copy(update={"parameters": turned}).key == SCOPE.key
    for name in ("lever", "setting", "ref", "workload", "device_kind"):
        assert SCOPE.model_copy(update={name: "else"}).key != SCOPE.key
    assert SCOPE.model_copy(update={"parameters": {**turned, "sms": 132}}).key != SCOPE.key


def test_runs_without_a_verdict_are_no_evidence() -> None:
    assert Evidence.of(factory.default_on()) is not None
    assert Evidence.of(factory.terminal()) is not None
    for record in (factory.inconclusive(), factory.not_engaged(), factory.interrupted()):
        assert Evidence.of(record) is None
    screen = factory.default_on().model_copy(update={"kind": "screen"})
    assert Evidence.of(screen) is None


def test_an_older_run_shows_what_stands_beside_it() -> None:
    said = Override(state="off", name="Ada", reason="freeze", at="2026-03-05")
    older, newer = run(1), run(2)
    standing = standing_of(older, [older, newer], said, Current(versions={"torch": "2.14.0"}))
    assert standing.confirmed == "run-2"
    assert standing.override == "off by Ada: freeze"
    assert "torch 2.13.0 -> 2.14.0" in standing.stale
    assert (standing.unbound, standing.invalidated) == ("", "")
