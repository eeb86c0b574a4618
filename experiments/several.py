"""The pipeline of several settings: a selection with the winner's verdict, and a screen.

Beside :mod:`experiments.pipeline`, whose ``ab`` measures the winner.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments import family_run, family_store, order_render, order_view, pipeline, screen_run
from experiments.family_outcome import winners_request
from experiments.family_records import FamilyRecord
from experiments.home import Home
from experiments.registry import Registry
from experiments.requests import AbRequest, Listener
from experiments.run_record import RunRecord
from experiments.screen_records import ScreenRecord


def settings_of(request: AbRequest, typed: Sequence[str]) -> tuple[str, ...]:
    """The candidates in canonical form, each once; see :func:`experiments.family_run.settings_of`.

    Raises:
        UsageError: one cannot be used.
    """
    return family_run.settings_of(request, typed)


def ab(
    request: AbRequest, settings: Sequence[str], listener: Listener
) -> tuple[FamilyRecord, RunRecord | None]:
    """Choose among the settings, then measure the winner on fresh pairs; its verdict decides.

    Returns:
        The selection, and the winner's decided run; None where no setting was left.

    Raises:
        UsageError: the request cannot be run; nothing was measured.
        StoreError: something cannot be written; what was reported is on disk.
        KeyboardInterrupt: it was interrupted; the winner's run can be resumed.
    """
    where = pipeline.home()
    with Registry.open(where.registry) as registry:
        family = family_run.run(request, settings, where, registry, listener)
    _save(where, family)
    asked = winners_request(request, family)
    if asked is None:
        return family, None
    listener.on_stage("winner", f"{family.lever}={family.winner}, on fresh pairs")
    decided = pipeline.ab(asked, listener)
    family = family.model_copy(update={"winner_run": decided.run_id})
    _save(where, family)
    return family, decided


def screen(request: AbRequest, settings: Sequence[str], listener: Listener) -> ScreenRecord:
    """Order the settings inside one process; no verdict.

    Raises:
        UsageError: the request cannot be run, or the lever cannot be switched inside a process.
        StoreError: the record cannot be written.
    """
    where = pipeline.home()
    with Registry.open(where.registry) as registry:
        record = screen_run.run(request, settings, where, registry, listener)
    path = screen_run.save(where, record)
    path.with_suffix(".md").write_text(order_render.markdown(order_view.of_screen(record)))
    return record


def _save(where: Home, family: FamilyRecord) -> None:
    path = family_store.save(where, family)
    path.with_suffix(".md").write_text(order_render.markdown(order_view.of_family(family)))
