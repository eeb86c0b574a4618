"""The mirror of a campaign's row in MLflow: one run below the experiment of the campaign."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from experiments.campaign.records import CampaignRow
from experiments.tracking import mirror as tracking
from experiments.tracking.artifacts import Files
from experiments.tracking.payload import NOTE, Payload, Point, RunPayload, cut, metric_name

ROLE = "campaign"


def mirror(row: CampaignRow, files: Files, text: str, home: Path, uri: str | None) -> str:
    """Write a row to MLflow; doing so twice leaves one copy.

    Args:
        row: as drawn.
        files: artifacts by path.
        text: Markdown for the run's page.
        home: ``$LEVERGATE_HOME``.
        uri: a tracking URI, or None for the store in the home.

    Returns:
        Why MLflow does not hold it; empty where it does.
    """
    own = {"row.json": row.model_dump_json(indent=1)}
    return tracking.hand_over_one(payload(row, text), {**own, **files}, home, uri)


def payload(row: CampaignRow, text: str) -> Payload:
    """What MLflow will hold of a row."""
    at = round(datetime.fromisoformat(row.created_at).timestamp() * 1000)
    parent = RunPayload(
        role=ROLE,
        name=f"{row.name}: {row.state}",
        status="FINISHED",
        start_ms=at,
        end_ms=at,
        tags=_tags(row) | {NOTE: cut(text)},
        params={"workload": row.workload, "oracle": row.oracle, "binding": row.binding}
        | ({"tokens_on": row.tokens_on} if row.tokens_on else {})
        | {f"workload/{name}": str(value) for name, value in row.parameters.items()},
        metrics=tuple(_metrics(row, at)),
    )
    row_id, experiment, version = key(row)
    return Payload(experiment=experiment, run_id=row_id, version=version, parent=parent, arms=())


def key(row: CampaignRow) -> tracking.Key:
    """What a row is found by in MLflow: its id, its experiment, and its content's digest."""
    return row.row_id, f"campaign/{row.name}", row.content_digest()


def _metrics(row: CampaignRow, at: int) -> Iterator[Point]:
    """The ratio that each axis reached, with its interval, and the shares of the residual."""
    for axis in row.axes:
        for end, value in (("", axis.ratio), ("/lower", axis.lower), ("/upper", axis.upper)):
            if value is not None:
                yield Point(metric_name(f"ratio/{axis.axis}{end}"), value, at, 0)
    for group in row.residual.groups if row.residual else ():
        yield Point(metric_name(f"residual_share/{group.group}"), group.share, at, 0)


def _tags(row: CampaignRow) -> dict[str, str]:
    tags = {
        "run_id": row.row_id,
        "role": ROLE,
        "kind": row.kind,
        "campaign": row.name,
        "workload": row.workload,
        "device_kind": row.device_kind,
        "state": row.state,
        "confidence": row.confidence,
        "recorded": str(row.recorded),
        "open": " ".join(one.lever for one in row.open_levers),
        "closed_by": row.closed_by,
    }
    named = {f"levergate.{key}": cut(value, pointer=" ...") for key, value in tags.items()}
    return named | {"mlflow.source.name": "levergate campaign", "mlflow.source.type": "LOCAL"}
