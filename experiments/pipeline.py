"""The one module that knows all the steps, with one function for each command.

spec -> plan -> environment -> witness -> parity -> samples -> effects -> decision -> registry,
MLflow, report. What a command does not use is not imported: ``list`` and ``show`` need no
statistics and no MLflow.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import home as homes
from experiments.home import Home
from experiments.requests import (
    AbRequest,
    HistoryRow,
    ImportRow,
    LeverRow,
    Listener,
    OverrideRequest,
    Standing,
    SyncReport,
)
from levers.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from experiments.defaults import DefaultState
    from experiments.marking import Invalidated, Overridden
    from experiments.policy_replay.agreement import ReplayReport
    from experiments.policy_replay.evidence import Untargeted
    from experiments.records import Decision
    from experiments.registry.store import Registry
    from experiments.run_record import RunRecord

TRACKING_VARIABLE = "MLFLOW_TRACKING_URI"
"""Where the mirror lies, if not in the home; as MLflow's own clients read it."""


def home(*, reading: bool = False) -> Home:
    """The home of this process, made if it is not there; one to read may be read-only."""
    found = homes.find(os.environ, Path.cwd())
    return found.to_read() if reading else found.make()


@contextlib.contextmanager
def _registry(where: Home) -> Iterator[Registry]:
    from experiments.registry.store import Registry

    with Registry.open(where.registry) as registry:
        yield registry


def ab(request: AbRequest, listener: Listener, *, mirror: bool = True) -> RunRecord:
    """Measure one lever at two settings, decide, and store the verdict everywhere.

    Without ``mirror`` the verdict is not rendered for MLflow; ``levergate sync`` still can. A run
    of ``parity_only`` that passed has no verdict and is on disk alone.

    Raises:
        UsageError: the request cannot be run; nothing was measured.
        StoreError: the run cannot be written; what was reported is on disk.
        KeyboardInterrupt: the run was interrupted; ``--resume`` goes on.
    """
    from experiments import ab_run

    where = home()
    with _registry(where) as registry:
        record = ab_run.run(request, where, registry, listener)
        if record.decision is not None:
            registry.save(record)
            listener.on_stage("save", "registry and MLflow")
            if mirror:
                _mirror(where, registry, record, listener)
    return record


def _mirror(where: Home, registry: Registry, record: RunRecord, listener: Listener) -> None:
    """The mirror may be down: that costs a line, and ``levergate sync`` makes it good."""
    from experiments import reports
    from experiments.tracking import mirror as tracking

    files, description = reports.rendered(record, registry.standing(record.run_id))
    uri = os.environ.get(TRACKING_VARIABLE)
    result = tracking.mirror(record, files, description, where.root, uri)
    registry.note_mirror(result.note(datetime.now(UTC).isoformat()))
    if not result.held:
        cure = "levergate sync mirrors it later"
        listener.on_warning(f"MLflow does not hold this run ({result.error}); {cure}")


def show(run: str) -> RunRecord:
    """A run by its id or a beginning of it: from the registry, else from its spool on disk.

    Raises:
        UnknownName: there is no such run.
    """
    where = home(reading=True)
    with _registry(where) as registry:
        try:
            return registry.load(run)
        except UnknownName as unknown:
            from experiments import spool_reader
            from experiments.family import store as family_store

            for folder in (where.runs, *family_store.folders(where)):
                with contextlib.suppress(UnknownName):
                    return spool_reader.load(folder, run).record
            raise unknown from None


def standing(run_id: str) -> Standing:
    """What must be shown beside a verdict: confirmed, stale, unbound, invalidated, overridden."""
    from experiments import now

    with _registry(home(reading=True)) as registry:
        try:
            return registry.standing(run_id, now.beside(registry, run_id))
        except UnknownName:
            return Standing()


def report_html(record: RunRecord, beside: Standing) -> str:
    """The self-contained page of a run."""
    from experiments import reports

    return reports.page(record, beside)


def history(lever: str | None) -> tuple[HistoryRow, ...]:
    """The runs of a lever, newest first; a name that was never stored must be a lever's."""
    from experiments import now, unfinished

    where = home(reading=True)
    with _registry(where) as registry:
        rows = registry.history(lever, current=now.current(registry))
    rows = unfinished.added(rows, where.runs, lever)
    if lever is not None and not rows:
        from levers import catalog

        catalog.get(lever)
    return rows


def listing() -> tuple[LeverRow, ...]:
    """All levers of the catalog with their default states; broken ones with the reason."""
    from experiments import now
    from levers import catalog

    known = catalog.listed()
    with _registry(home(reading=True)) as registry:
        states = registry.default_states(current=now.current(registry, known))
    rows = []
    for found in known:
        if found.lever is None:
            rows.append(LeverRow(found.name, broken=found.broken))
            continue
        lever = found.lever
        mine = [state for state in states if state.scope.lever == lever.name]
        said = (lever.summary, lever.settings.describe(), lever.workloads, lever.env)
        states_of = tuple((str(state.scope), state.label_beside) for state in mine)
        notes = tuple(f"{state.scope}: {note}" for state in mine for note in state.remarks)
        rows.append(LeverRow(lever.name, *said, states=states_of, notes=notes))
    return tuple(rows)


def invalidate(runs: Sequence[str], *, reason: str, name: str) -> Invalidated:
    """Mark runs as no longer valid and bring the mark to MLflow.

    Raises:
        UsageError: no such run, no name or no reason; nothing was marked.
    """
    from experiments.marking import Invalidated

    with _registry(home()) as registry:
        at = datetime.now(UTC).isoformat()
        done = registry.invalidate(runs, reason=reason, name=name, at=at)
    return Invalidated(done, sync())


def override(asked: OverrideRequest) -> Overridden:
    """Put a person's word over the verdict of one scope and bring it to MLflow.

    Raises:
        UsageError: no verdict or several fit, no name or no reason; nothing was changed.
    """
    from experiments import marking
    from experiments.defaults import Override

    at = datetime.now(UTC).isoformat()
    said = Override(state=asked.state, name=asked.name, reason=asked.reason, at=at)
    with _registry(home()) as registry:
        if asked.run is not None:
            scope = marking.scope_of_run(registry.load(asked.run), asked.lever)
        else:
            scope = marking.chosen_scope(_states_of(registry, asked.lever), asked)
        state = registry.override(scope, said)
    return marking.Overridden(state, sync())


def _states_of(registry: Registry, lever: str) -> tuple[DefaultState, ...]:
    """The default states of a lever; a name that was never stored must be a lever's."""
    states = registry.default_states(lever)
    if not states:
        from levers import catalog

        catalog.get(lever)
    return states


def replay(run: str) -> tuple[Decision | None, Decision]:
    """The stored decision of a run, and the one that its raw samples lead to again."""
    from experiments.replay import decide_again

    record = show(run)
    return record.decision, decide_again(record)


def policy_replay(file: Path, policy: str, unknown_state: Untargeted) -> ReplayReport:
    """A corpus of recorded decisions, decided again under a named policy.

    Raises:
        UsageError: there is no such policy, or the file holds no such corpus.
    """
    from experiments.policy_replay import agreement, corpus, evidence

    return agreement.replayed(corpus.read(file), evidence.named(policy), unknown_state)


def export(run: str, path: Path) -> Path:
    """Write a run's evidence bundle, with its profile if it has one."""
    from experiments import bundles, profile_store

    record = show(run)
    return bundles.export(record, path, profile_store.found(home(reading=True), record.run_id))


def import_bundles(paths: Sequence[Path], heard: Callable[[ImportRow], None]) -> None:
    """Take evidence bundles into the registry and MLflow; doing so twice changes nothing.

    Raises:
        BadParameter: a file is no bundle; those before it are in.
        StoreError: a bundle is damaged, edited or from a newer version; those before it are in.
    """
    from experiments import bundles

    try:
        where = home()
        with _registry(where) as registry:
            for path in paths:
                record, saved = bundles.take_in(registry, where, path)
                heard(ImportRow(str(path), record.run_id, saved == "stored", saved == "replaced"))
    finally:
        sync()


def sync() -> SyncReport:
    """Write to MLflow every ended run that it lacks."""
    from experiments import reports, spool_reader
    from experiments.tracking import mirror as tracking

    where = home()
    with _registry(where) as registry:
        # Runs that were decided on disk while the registry could not be written are taken in.
        for verdict in sorted(where.runs.glob(f"*/{spool_reader.VERDICT}")):
            registry.save(spool_reader.read_record(verdict))
        return tracking.sync(
            registry,
            lambda record: reports.rendered(record, registry.standing(record.run_id)),
            where.root,
            os.environ.get(TRACKING_VARIABLE),
            at=datetime.now(UTC).isoformat(),
        )


def ui(port: int) -> None:
    """Run MLflow's page on the mirror until it is ended.

    Raises:
        UsageError: the server did not start.
    """
    from experiments.tracking import store as tracking_store

    command = tracking_store.ui_command(home().root, port, os.environ.get(TRACKING_VARIABLE))
    server = subprocess.Popen(command.argv, env=dict(command.environment), start_new_session=True)
    try:
        code = server.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
    if code not in (0, 130, -2, -15):
        raise UsageError(
            f"the MLflow server ended with exit code {code}",
            cure=f"use another --port than {port} if that one is taken",
        )
