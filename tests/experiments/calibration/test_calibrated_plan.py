from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from experiments.calibration import noise as calibration_noise
from experiments.calibration import store as calibration_store
from experiments.calibration.rates import Noise
from experiments.calibration.requests import PlanRequest
from experiments.calibration.text import answer, print_plan
from experiments.calibration.verdict_plan import KnownNoise, VerdictPlan, plan_verdict
from experiments.commands.output import stdout
from experiments.environment import cpu_device, describe
from experiments.parsing import effect_ratio
from experiments.power import power_at
from experiments.records import Timing
from experiments.registry.store import Registry
from experiments.replay import decide_again, looks_of
from experiments.simulated_runs import Rules
from experiments.spec import DEFAULT_LOOKS
from levers.errors import UnknownName, UsageError
from levers.policy import Axis, GatingPolicy, Guard
from tests.support import calibration_factory as factory
from tests.support import evidence_factory, runs
from tests.support.stub_workload import RATE

RATE_AXIS, WAIT = Axis("rate/c1", "tok/s", True), Axis("wait/p95", "ms", False)
NOW = "2026-03-05T08:00:00+00:00"


def known(sd: tuple[float, float] = (0.01, 0.01), seconds: float = 6.0) -> KnownNoise:
    drawn = np.random.default_rng(2).normal(0, 1, (80, 2)) * np.array(sd)
    return KnownNoise(Noise((RATE_AXIS.name, WAIT.name), drawn), "a calibration", seconds)


def rules(margin: float = 0.03, **changes: object) -> Rules:
    bar = GatingPolicy(primaries=("rate/*",), guards=(Guard(WAIT.name, margin),), **changes)
    return Rules(bar, (RATE_AXIS, WAIT))


def planned(effect: float = 0.03, of: Rules | None = None, **changes: object) -> VerdictPlan:
    noise = changes.pop("noise", None) or known()
    return plan_verdict("lever", "work", of or rules(), noise, effect=effect, **changes)


def test_a_larger_effect_takes_fewer_pairs() -> None:
    pairs = [planned(effect).mean_pairs for effect in (0.015, 0.03, 0.06)]
    assert pairs[0] > pairs[1] > pairs[2] >= 6


def test_the_power_at_each_look_is_that_of_the_design() -> None:
    """One axis, no guard in the way, an effect of twice the noise: the noncentral t agrees."""
    found = planned(0.02, rules(10.0, primary_margin=10.0, smallest_gain=1e-9))
    expected = power_at(DEFAULT_LOOKS, 0.02 / 0.01)
    for look, power in zip(found.looks, expected, strict=True):
        assert look.on == pytest.approx(power, abs=0.09)
        assert look.minutes == pytest.approx(look.pairs * 0.1)
    assert found.looks[-1].verdict == 1.0


def test_guards_cost_pairs_and_the_dearest_comes_first() -> None:
    found = planned(0.05, rules(0.01), noise=known((0.005, 0.015)))
    assert found.guard_pairs > 3
    assert [guard.axis for guard in found.guards] == [WAIT.name, RATE_AXIS.name]
    assert found.guards[0].pairs is not None
    assert 9 < found.guards[0].pairs < 25
    for look in found.looks:
        assert look.verdict_without_guards >= look.verdict


def test_a_guard_that_noise_hides_leaves_runs_without_a_verdict() -> None:
    found = planned(0.05, rules(0.01), noise=known((0.01, 0.08)))
    assert found.likely_pairs is None
    assert found.ends["undecided"] > 0.5
    assert "have a verdict by 40 pairs" in answer(found)


def test_an_effect_at_the_smallest_gain_is_said_to_be_hard() -> None:
    assert "often falls below" in planned(0.01).notes[0]
    assert planned(0.03).notes == ()


def test_a_loss_is_found_too() -> None:
    ends = planned(-0.05).ends
    assert ends["regression"] > 0.7
    assert ends["regression"] + ends["no-failing-axis-win"] == pytest.approx(1.0)


def test_an_axis_that_is_no_primary_cannot_have_the_effect() -> None:
    with pytest.raises(UnknownName, match="wait"):
        planned(on="wait/*")
    assert planned(on="*/c1").on == (RATE_AXIS.name,)


def test_the_answer_names_pairs_time_and_the_battery(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(0.06, battery_s=75.0)
    assert "nine of ten runs end within" in answer(found)
    assert "1 min 15 s" in answer(found)
    print_plan(stdout(), found)
    shown = capsys.readouterr().out
    for word in ("40 pairs", "wait/p95", "a calibration", "ships ON"):
        assert word in shown


@pytest.mark.parametrize(("text", "value"), [("1%", 0.01), (" -2.5 % ", -0.025), ("+3%", 0.03)])
def test_an_effect_is_typed_in_percent(text: str, value: float) -> None:
    assert effect_ratio(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["1", "0.01", "%", "0%", "one%", ""])
def test_what_is_no_percentage_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="percentage"):
        effect_ratio(text)


# --- where the noise comes from ----------------------------------------------------------------


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    runs.use_stub(monkeypatch)
    with Registry.open(tmp_path / "registry.db") as opened:
        yield opened


def request(**changes: object) -> PlanRequest:
    values = {"lever": "planted_fast", "effect": 0.03, "settings": {"clock": "virtual"}}
    return PlanRequest(**{**values, **changes})


def test_without_noise_it_must_calibrate_first(registry: Registry) -> None:
    with pytest.raises(UsageError, match="levergate calibrate stub --set clock=virtual"):
        calibration_noise.planned(request(), registry, cpu_device(), NOW)


def test_the_last_calibration_is_the_noise(registry: Registry) -> None:
    here = describe(cpu_device(), {}, {}, {})
    measured = factory.calibration(40, environment=here)
    calibration_store.save(registry.store, measured)
    found = calibration_noise.planned(request(), registry, cpu_device(), NOW)
    assert found.source == f"calibration {measured.calibration_id}, 40 pairs"
    assert found.on == (RATE,)
    per_pair = found.looks[0].minutes * 60 / found.looks[0].pairs
    assert per_pair == pytest.approx(4.0 * 1.25), "an oracle pair for each block of four"
    alone = calibration_noise.planned(request(oracle="none"), registry, cpu_device(), NOW)
    assert alone.looks[0].minutes == pytest.approx(found.looks[0].minutes / 1.25)
    late = calibration_noise.planned(request(), registry, cpu_device(), "2026-06-05T08:00:00+00:00")
    assert "STALE" in late.source


def test_without_a_calibration_the_last_runs_are_the_noise(registry: Registry) -> None:
    """The effect of such a run is no noise: a clear win leaves the noise of its pairs."""
    here = describe(cpu_device(), {}, {}, {})
    samples = tuple(
        one.model_copy(
            update={
                "values": {k: v * (1.2 if k == RATE else 1 / 1.2) for k, v in one.values.items()}
            }
        )
        if one.arm == "cand"
        else one
        for one in factory.samples(18, sd=0.01)
    )
    spec = runs.spec(parameters=factory.PARAMETERS, lever="planted_fast", oracle=None)
    whole = factory.record(
        18,
        kind="ab",
        spec=spec,
        samples=samples,
        environment=here,
        witnesses=evidence_factory.witnesses((RATE,)),
        parity=evidence_factory.parity(spec.policy.claims),
        timing=Timing(total_s=100.0, parity_s=33.0),
    )
    looked = whole.model_copy(update={"looks": tuple(looks_of(whole))})
    decided = looked.model_copy(update={"status": "decided", "decision": decide_again(looked)})
    registry.save(decided)
    found = calibration_noise.planned(request(), registry, cpu_device(), NOW)
    assert decided.run_id in found.source
    assert "not calibrated" in found.source
    assert found.battery_s == 33.0
    assert found.looks[0].minutes == pytest.approx(6 * 3.0 / 60)
    [guard] = [one for one in found.guards if one.axis == RATE]
    assert guard.sd == pytest.approx(0.01, rel=0.5)
