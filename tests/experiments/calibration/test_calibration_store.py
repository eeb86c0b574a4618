from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from experiments.calibration import store as calibration_store
from experiments.calibration.records import Calibration
from experiments.calibration.store import CALIBRATIONS
from experiments.registry.store import Registry
from experiments.requests import FalseVerdictRate
from experiments.run_record import RunRecord
from levers.errors import StoreError
from tests.support import calibration_factory as factory
from tests.support import records_factory, runs


@pytest.fixture(scope="module")
def measured() -> Calibration:
    with pytest.MonkeyPatch.context() as patch:
        runs.use_stub(patch)
        return factory.calibration(12)


def run_of(measured: Calibration, **changes: Any) -> RunRecord:
    """A decided run of the calibrated work on the calibrated machine."""
    whole = records_factory.default_on()
    here = whole.environment.model_copy(update=changes.pop("environment", {}))
    spec = whole.spec.model_copy(
        update={
            "workload": measured.workload,
            "parameters": measured.parameters,
            **changes.pop("spec", {}),
        }
    )
    fields = {"created_at": measured.created_at, "environment": here, "spec": spec, **changes}
    return whole.model_copy(update=fields)


def beside(registry: Registry, run: RunRecord) -> FalseVerdictRate | None:
    registry.save(run)
    return registry.standing(run.run_id).calibration


def again(measured: Calibration, **changes: Any) -> Calibration:
    return measured.model_copy(update=changes)


def test_a_calibration_comes_back_as_it_was(tmp_path: Path, measured: Calibration) -> None:
    with Registry.open(tmp_path / "registry.db") as registry:
        calibration_store.save(registry.store, measured)
        calibration_store.save(registry.store, measured)
        here = measured.environment
        place = measured.workload, measured.parameters, here.device_kind, here.host
        with registry.store.reading() as connection:
            assert calibration_store.latest(connection, *place, here.versions) == measured


def test_the_rate_stands_beside_every_later_verdict(tmp_path: Path, measured: Calibration) -> None:
    with Registry.open(tmp_path / "registry.db") as registry:
        assert beside(registry, run_of(measured)) is None
        calibration_store.save(registry.store, measured)
        found = registry.standing(run_of(measured).run_id).calibration
        assert found is not None
        expected = measured.rate_for("fa2_nsplits_cap").false
        assert (found.rate, found.lower, found.upper) == (
            expected.rate,
            expected.lower,
            expected.upper,
        )
        assert not found.stale


@pytest.mark.parametrize(
    "changes",
    [
        {"spec": {"parameters": {"size": 65}}},
        {"spec": {"workload": "decode"}},
        {"environment": {"host": "another"}},
        {"environment": {"device_kind": "another"}},
    ],
    ids=["parameters", "workload", "host", "device"],
)
def test_another_work_or_machine_is_not_calibrated_by_it(
    tmp_path: Path, measured: Calibration, changes: dict[str, Any]
) -> None:
    with Registry.open(tmp_path / "registry.db") as registry:
        calibration_store.save(registry.store, measured)
        assert beside(registry, run_of(measured, **changes)) is None


def test_another_stack_or_a_month_makes_it_stale_and_blocks_nothing(
    tmp_path: Path, measured: Calibration
) -> None:
    newer = run_of(measured, environment={"versions": {"torch": "3.0"}})
    later = run_of(measured, created_at="2026-04-15T08:00:00+00:00", run_id="later")
    with Registry.open(tmp_path / "registry.db") as registry:
        calibration_store.save(registry.store, measured)
        for run in (newer, later):
            found = beside(registry, run)
            assert found is not None
            assert found.stale
            assert registry.load(run.run_id).decision == run.decision
    assert "torch" in measured.stale_for({"torch": "3.0"}, measured.created_at)
    assert "days" in measured.stale_for(measured.environment.versions, later.created_at)


def test_the_last_one_counts_and_one_of_the_same_stack_before_others(
    tmp_path: Path, measured: Calibration
) -> None:
    other = measured.environment.model_copy(update={"versions": {"torch": "3.0"}})
    second = again(measured, calibration_id="b", created_at="2026-03-02T08:00:00+00:00")
    third = again(
        measured, calibration_id="c", created_at="2026-03-03T08:00:00+00:00", environment=other
    )
    with Registry.open(tmp_path / "registry.db") as registry:
        for one in (third, second, measured):
            calibration_store.save(registry.store, one)
        found = beside(registry, run_of(measured))
        assert found is not None
        assert found.measured_at == second.created_at


def test_a_lever_that_came_later_gets_the_worst_rate(measured: Calibration) -> None:
    worst = measured.rates[0].model_copy(
        update={"levers": ("bad",), "false": measured.rates[0].false.model_copy(update={"rate": 1})}
    )
    both = again(measured, rates=(*measured.rates, worst))
    assert both.rate_for("nobody knows").levers == ("bad",)
    assert both.rate_for("planted_fast").levers != ("bad",)


@pytest.mark.parametrize(
    ("values", "said"),
    [({"schema_version": 99}, "upgrade levergate"), ({"record": "{}"}, "calibrate again")],
)
def test_a_calibration_that_cannot_be_read_says_what_to_do(
    tmp_path: Path, measured: Calibration, values: dict[str, Any], said: str
) -> None:
    with Registry.open(tmp_path / "registry.db") as registry:
        calibration_store.save(registry.store, measured)
        with registry.store.writing() as connection:
            connection.execute(update(CALIBRATIONS).values(**values))
        registry.save(run_of(measured))
        with pytest.raises(StoreError, match=said):
            registry.standing(run_of(measured).run_id)
