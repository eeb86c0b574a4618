"""Check 8, ``smoke``: the workload end to end, once, with the candidate on."""

from __future__ import annotations

import math

from experiments.parity.bench import Bench
from experiments.parity.results import empty, failed
from experiments.parity_records import CheckResult
from experiments.tasks import Measurement, Task

NAME = "smoke"


def check(bench: Bench) -> CheckResult:
    """Run the workload once and see that every axis came out as a usable figure.

    Raises:
        ProcessFailed: the process failed.
    """
    result = bench.measure("cand", bench.alone.cand)
    axes = [axis.name for axis in bench.workload.axes(bench.spec.parameters)]
    return judge(axes, result.measurement)


def ahead(bench: Bench) -> tuple[Task, ...]:
    """The processes that :func:`check` will ask for."""
    return (bench.measure_task("cand", bench.alone.cand),)


def judge(axes: list[str], measurement: Measurement | None) -> CheckResult:
    """Every axis must be there, finite and above zero, and some output must have come out."""
    if measurement is None or not axes or not measurement.outputs_count:
        return empty(NAME, "the workload produced no output")
    bad = [name for name in axes if not _usable(measurement.values.get(name))]
    counts = (len(axes) - len(bad), len(axes))
    if bad:
        return failed(NAME, f"{len(bad)} axes without a usable figure", bad[0], counts)
    return CheckResult(
        name=NAME,
        status="passed",
        passed=len(axes),
        total=len(axes),
        detail=f"{measurement.outputs_count} outputs, every axis measured",
    )


def _usable(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0
