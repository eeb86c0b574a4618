"""Which rows of a campaign were reported, and which of them MLflow is known to hold.

Rows between two steps of a run are stored and not reported: they are the campaign's history in the
registry. A row is noted here before anything else is made of it, so that a store that is down, or
a page that could not be written, leaves a note that ``levergate sync`` acts on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from experiments.campaign import files, store
from experiments.campaign.records import CampaignRow
from experiments.files import write_atomically
from experiments.home import Home
from experiments.registry.store import Registry
from levers.errors import StoreError

NOTES = "reported.json"
"""In the folder of a campaign's report: for each row its digest by the URI that holds it."""

Notes = dict[str, dict[str, str]]


def note(folder: Path, row: CampaignRow, uri: str | None = None) -> None:
    """Note that a row was reported, or that MLflow at ``uri`` (empty: the home's store) holds it.

    Args:
        folder: of the campaign's report.
        row: as it was reported.
        uri: None where it is not held yet.

    Raises:
        StoreError: the folder cannot be written.
    """
    notes = _read(folder)
    held = notes.setdefault(row.row_id, {})
    if uri is not None:
        held[uri] = row.content_digest()
    write_atomically(folder / NOTES, json.dumps(notes, indent=1) + "\n")


def is_held(folder: Path, row: CampaignRow, uri: str) -> bool:
    """Whether MLflow at ``uri`` is known to hold this row as it is now."""
    return _read(folder).get(row.row_id, {}).get(uri) == row.content_digest()


def rows(home: Home, registry: Registry) -> Iterator[tuple[Path, CampaignRow | StoreError]]:
    """Every reported row with the folder of its report; in its place why it cannot be read."""
    for path in sorted((home.root / files.FOLDER).glob(f"*/{NOTES}")):
        folder, known = path.parent, _read(path.parent)
        try:
            found = store.rows(registry.store, folder.name)
        except StoreError as error:
            yield folder, error
            continue
        yield from ((folder, row) for row in reversed(found) if row.row_id in known)


def _read(folder: Path) -> Notes:
    """The notes; a file that is not there or is damaged knows of none."""
    try:
        found = json.loads((folder / NOTES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    good = isinstance(found, dict) and all(isinstance(one, dict) for one in found.values())
    return found if good else {}
