"""Bringing to MLflow the reported rows of campaigns that it lacks: the store itself is asked."""

from __future__ import annotations

import os

from experiments import pipeline
from experiments.campaign import reported, reports, tracking
from experiments.campaign.records import CampaignRow
from experiments.home import Home
from experiments.registry.store import Registry
from experiments.requests import SyncReport
from experiments.tracking import mirror
from levers.errors import StoreError


def sync() -> SyncReport:
    """Write to MLflow every reported row that it does not hold as it is now."""
    where = pipeline.home()
    uri = os.environ.get(pipeline.TRACKING_VARIABLE)
    with Registry.open(where.registry) as registry:
        found = tuple(reported.rows(where, registry))
    unread = [(folder.name, row) for folder, row in found if isinstance(row, StoreError)]
    held = {row.row_id: (folder, row) for folder, row in found if isinstance(row, CampaignRow)}
    asked = tuple(tracking.key(row) for _, row in held.values())
    lacking, fault = mirror.missing(asked, where.root, uri) if held else ([], "")
    if fault:
        waiting = [
            row_id
            for row_id, (folder, row) in held.items()
            if not reported.is_held(folder, row, uri or "")
        ]
        return SyncReport(waiting=(*waiting, *(name for name, _ in unread)), reason=fault)
    problems = {row_id: hand_over(held[row_id][1], where) for row_id in lacking}
    waiting = [row_id for row_id in lacking if problems[row_id]]
    words = [*filter(None, problems.values()), *(error.message for _, error in unread)]
    return SyncReport(
        mirrored=tuple(row_id for row_id in lacking if not problems[row_id]),
        waiting=(*waiting, *(name for name, _ in unread)),
        reason=next(iter(words), ""),
    )


def hand_over(row: CampaignRow, where: Home) -> str:
    """Have a row written to MLflow and note that it is held; why it is not, or empty."""
    uri = os.environ.get(pipeline.TRACKING_VARIABLE)
    text = reports.markdown(row)
    shown = {"report.html": reports.page(row), "row.md": text}
    problem = tracking.mirror(row, shown, text, where.root, uri)
    if not problem:
        reported.note(reports.folder(where, row.name), row, uri or "")
    return problem
