from __future__ import annotations

import contextlib
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support import records_factory as factory

from experiments.tracking import mirror as tracking
from experiments.tracking.payload import payload

WRITERS = 4
"""Each imports MLflow for seconds; four meet while the store is made as eight do."""


@pytest.mark.slow
def test_runs_that_end_at_once_on_a_fresh_home_are_all_mirrored_whole(tmp_path: Path) -> None:
    made = [
        factory.default_on().model_copy(update={"run_id": f"run-{number}"})
        for number in range(WRITERS)
    ]
    with ThreadPoolExecutor(WRITERS) as pool:
        results = list(
            pool.map(lambda run: tracking.mirror(run, {}, "#", tmp_path, timeout_s=200), made)
        )
    assert [one.error for one in results] == [""] * WRITERS
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as connection:
        (runs,) = connection.execute("SELECT count(*) FROM runs").fetchone()
        (metrics,) = connection.execute("SELECT count(*) FROM metrics").fetchone()
        left = connection.execute("SELECT count(*) FROM runs WHERE status = 'RUNNING'").fetchone()
        experiments = connection.execute(
            "SELECT count(*) FROM experiments WHERE name = 'fa2_nsplits_cap'"
        ).fetchone()
    whole = payload(made[0], "#")
    one = sum(len(run.metrics) for run in (whole.parent, *whole.arms))
    assert (runs, metrics) == (WRITERS * 3, WRITERS * one)
    assert (left, experiments) == ((0,), (1,))
