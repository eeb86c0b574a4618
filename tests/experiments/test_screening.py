from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from experiments.compilations import CompilationCounter
from experiments.order_view import of_screen
from experiments.screen_records import ScreenRecord, rows_of
from experiments.screening import orders, screen
from experiments.spec import LeverSetting
from experiments.tasks import Measurement, Task, Visit
from experiments.worker import Stage
from levers.base import Site
from levers.policy import Axis
from tests.support import runs
from tests.support.stub_workload import RATE, SITE, STEP

AXES = (Axis(RATE, "items/s", True), Axis(STEP, "ms", False))


def product(x_NN: Any, y_NN: Any) -> tuple[float, str]:
    return 1.0, "kernel=product"


class Session:
    """Computes nothing; its speed is what the callable in its site costs."""

    def __init__(self) -> None:
        self.site = Site(SITE, product)
        self.sites: Mapping[str, Site] = {SITE: self.site}
        self.calls: list[str] = []

    def renew(self) -> None:
        self.calls.append("renew")

    def warm_up(self) -> None:
        self.calls.append("warm up")
        self.site.launch(0, 0)

    def measure(self) -> Measurement:
        self.calls.append("measure")
        cost = float(getattr(self.site.launch, "cost", 1.0))
        return Measurement(
            values={RATE: 1 / cost, STEP: cost}, inputs_digest="same", outputs_count=1
        )

    def exercise(self) -> None:
        self.site.observe(RATE, self.site.launch(0, 0)[1])

    def outputs(self, arguments: Mapping[str, Any]) -> Any:
        raise AssertionError("a screen compares no outputs")


def screened(*settings: str, seconds: float = 60.0, rounds: int = 4) -> tuple[Session, Any]:
    session = Session()
    arguments = {
        "lever": "planted_several",
        "settings": ["off", *settings],
        "rounds": rounds,
        "seconds": seconds,
    }
    spec = runs.spec("planted_several", "4")
    task = runs.task(spec, "screen", "ref", arguments=arguments)
    assert isinstance(task, Task)
    return session, screen(task, session, Stage(None), CompilationCounter())


@pytest.fixture(autouse=True)
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    runs.use_stub(monkeypatch)


def test_the_order_of_a_round_is_the_reverse_of_the_one_before() -> None:
    found = list(orders(("off", "a", "b"), 3))
    assert found == [(0, ("off", "a", "b")), (1, ("b", "a", "off")), (2, ("off", "a", "b"))]


def test_every_visit_warms_up_again_after_what_was_captured_is_dropped() -> None:
    session, result = screened("4", "9", rounds=2)
    assert session.calls == ["renew", "warm up", "measure"] * 6
    assert [visit.setting for visit in result.visits] == ["off", "4", "9", "9", "4", "off"]


def test_the_site_is_as_it_was_found_after_a_screen() -> None:
    session, _ = screened("4", "raises")
    assert session.site.launch is product


def test_no_further_rounds_begin_when_the_time_is_over_but_two_are_always_made() -> None:
    _, result = screened("4", seconds=0.0, rounds=6)
    assert max(visit.round for visit in result.visits) == 1


def test_a_setting_that_raises_is_left_out_and_the_others_are_visited_in_all_rounds() -> None:
    _, result = screened("4", "raises", "9")
    visited = [visit.setting for visit in result.visits]
    assert visited.count("raises") == 1
    assert visited.count("4") == visited.count("9") == visited.count("off") == 4
    (failed,) = [visit for visit in result.visits if visit.failure]
    assert (failed.failure, failed.message) == ("crashed", "RuntimeError: this setting cannot")


def test_the_plans_of_each_setting_are_read_once() -> None:
    _, result = screened("4", "same")
    first = {visit.setting: dict(visit.plans) for visit in result.visits if visit.round == 0}
    assert first["4"] == {RATE: "kernel=4 x 1"}
    assert first["same"] == first["off"]
    assert not any(visit.plans for visit in result.visits if visit.round)


def visit(setting: str, number: int, rate: float) -> Visit:
    return Visit(setting=setting, round=number, values={RATE: rate, STEP: 1 / rate})


def test_rough_effects_compare_within_a_round_and_the_best_comes_first() -> None:
    visits = [visit("off", n, 10 * (n + 1)) for n in range(2)]
    visits += [visit("a", 0, 11.0), visit("a", 1, 24.0), visit("b", 0, 15.0), visit("b", 1, 30.0)]
    rows = rows_of("off", ("a", "b", "c"), AXES, (RATE,), visits)
    assert [row.setting for row in rows] == ["b", "a", "c"]
    assert rows[0].score == pytest.approx(math.log(1.5))
    assert rows[2].score is None
    step = rows[1].effect(STEP)
    assert step is not None
    assert step.mean == pytest.approx((math.log(1.1) + math.log(1.2)) / 2)
    assert (step.lowest, step.highest) == pytest.approx((math.log(1.1), math.log(1.2)))


def recorded(**more: Any) -> ScreenRecord:
    return ScreenRecord(
        screen_id="s",
        created_at="2026-01-01",
        lever="x",
        ref="off",
        workload="stub",
        parameters={},
        device="cpu",
        device_kind="cpu",
        stack="",
        seed=1,
        axes=AXES,
        primaries=(RATE,),
        rows=rows_of("off", ("a",), AXES, (RATE,), ()),
        rounds=0,
        **more,
    )


def test_a_screen_without_an_order_says_so_first() -> None:
    shown = of_screen(recorded(failure="the reference crashed: boom"))
    assert shown.lines[0] == "NO ORDER: the reference crashed: boom"
    assert "no verdict" in shown.label
    assert shown.rows == (("a", "-", "-", "-", "-", ""),)


def test_a_screen_names_the_levers_that_were_on_in_both_arms() -> None:
    beside = (LeverSetting(lever="a", setting="on"), LeverSetting(lever="b", setting="2"))
    assert "on in both arms: a=on, b=2" in of_screen(recorded(beside=beside)).lines


def test_a_screen_from_before_they_were_kept_is_read() -> None:
    old = recorded().model_dump(mode="json")
    del old["beside"]
    assert ScreenRecord.model_validate(old) == recorded()
    assert not any("both arms" in line for line in of_screen(recorded()).lines)
