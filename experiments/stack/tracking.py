"""The mirror of a stack in MLflow: one run below ``stack/<workload>``, with table, plot, bundle."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from experiments.spec import told
from experiments.stack import store as stack_store
from experiments.stack.records import StackRecord
from experiments.tracking import mirror as tracking
from experiments.tracking.artifacts import Files
from experiments.tracking.payload import (
    NOTE,
    Payload,
    Point,
    RunPayload,
    Status,
    cut,
    metric_name,
    percent,
)

ROLE = "stack"
STATUS: dict[str, Status] = {"measured": "FINISHED", "refused": "FAILED"}


def mirror(record: StackRecord, files: Files, text: str, home: Path, uri: str | None) -> str:
    """Write a stack to MLflow; doing so twice leaves one copy.

    Args:
        record: the stack.
        files: artifacts by path.
        text: Markdown for the run's page.
        home: ``$LEVERGATE_HOME``.
        uri: a tracking URI, or None for the store in the home.

    Returns:
        Why MLflow does not hold it; empty where it does.
    """
    own = {stack_store.bundle_name(record): stack_store.dump(record)}
    return tracking.hand_over_one(payload(record, text), {**own, **files}, home, uri)


def payload(record: StackRecord, text: str) -> Payload:
    """What MLflow will hold of a stack."""
    start = round(datetime.fromisoformat(record.created_at).timestamp() * 1000)
    end = start + round(record.total_s * 1000)
    spec = record.spec
    parent = RunPayload(
        role=ROLE,
        name=f"{' + '.join(one.lever for one in spec.levers)}: {record.status}",
        status=STATUS.get(record.status, "KILLED"),
        start_ms=start,
        end_ms=end,
        tags=_tags(record) | {NOTE: cut(text)},
        params=_params(record),
        metrics=tuple(point for point in _metrics(record, end) if math.isfinite(point.value)),
    )
    return Payload(
        experiment=f"stack/{spec.workload}",
        run_id=record.stack_id,
        version=record.content_digest(),
        parent=parent,
        arms=(),
    )


def _metrics(record: StackRecord, at: int) -> Iterator[Point]:
    """The values of the waterfall's rows (the step is the row), and each lever's gain."""
    spec, analysis = record.spec, record.analysis
    for row, values in enumerate(analysis.values[: spec.whole + 1]):
        for axis, value in values.items():
            yield Point(metric_name(axis), value, at, row)
    for table, contrasts in (("gain", analysis.gains), ("without", analysis.left_out)):
        for one in contrasts:
            effect = one.effect(spec.axis)
            if effect is not None:
                ends = (("", effect.estimate), ("/lower", effect.lower), ("/upper", effect.upper))
                for end, ratio in ends:
                    key = metric_name(f"{table}_percent/{one.name}{end}")
                    yield Point(key, percent(ratio), at, 0)


def _tags(record: StackRecord) -> dict[str, str]:
    spec, here = record.spec, record.environment
    tags = {
        "run_id": record.stack_id,
        "role": ROLE,
        "kind": record.kind,
        "workload": spec.workload,
        "levers": " ".join(map(str, spec.levers)),
        "device_kind": here.device_kind,
        "stack": here.stack,
        "measured_on": here.host,
        "status": record.status,
        "reason": "; ".join(code for code, _ in record.faults),
    }
    named = {f"levergate.{key}": cut(value, pointer=" ...") for key, value in tags.items()}
    return named | {"mlflow.source.name": "levergate stack", "mlflow.source.type": "LOCAL"}


def _params(record: StackRecord) -> dict[str, str]:
    spec = record.spec
    named = {f"workload/{name}": str(value) for name, value in spec.parameters.items()}
    return {
        "levers": " ".join(map(str, spec.levers)),
        "axis": spec.axis,
        "blocks": str(spec.blocks),
        "seed": str(spec.seed),
        **named,
        **({"tokens_on": on} if (on := told(spec.tokens_on, spec.parameters)) else {}),
    }
