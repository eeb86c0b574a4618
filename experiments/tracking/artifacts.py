"""The files that go with a run into MLflow."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments import bundles
from experiments.records import Sample
from experiments.run_record import RunRecord
from experiments.tracking.payload import Payload, payload

Files = Mapping[str, bytes | str]
Rendered = tuple[Files, str]
"""The artifacts of a run by path, and the Markdown of its page."""


def lay_out(
    root: Path, record: RunRecord, files: Files, description: str, version: str | None = None
) -> Path:
    """One folder with all that the writing process needs of a run."""
    own = {**artifacts(record), "verdict.md": description}
    folder = lay_out_files(root, payload(record, description, version), {**own, **files})
    for arm in dict.fromkeys(sample.arm for sample in record.samples):
        mine = [sample for sample in record.samples if sample.arm == arm]
        _write(folder / "arms" / arm / "samples.csv", samples_csv(mine))
    return folder


def lay_out_files(root: Path, what: Payload, files: Files) -> Path:
    """One folder with what MLflow will hold and its artifacts."""
    folder = root / what.run_id
    _write(folder / "payload.json", what.model_dump_json())
    for name, content in files.items():
        _write(folder / "files" / name, content)
    return folder


def _write(path: Path, content: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def artifacts(record: RunRecord) -> dict[str, str]:
    """The artifacts that every run has: bundle, samples, environment and verdict."""
    found = {
        bundles.bundle_name(record): bundles.dump(record),
        "samples.csv": samples_csv(record.samples),
        "environment.json": record.environment.model_dump_json(indent=1),
    }
    if record.decision is not None:
        found["verdict.json"] = record.decision.model_dump_json(indent=1)
    return found


def samples_csv(samples: Sequence[Sample]) -> str:
    """The samples as a table that MLflow's artifact viewer shows: one row a process."""
    axes = sorted({axis for sample in samples for axis in sample.values})
    fixed = ("pair", "arm", "position", "started_at", "start_s", "warmup_s", "measured_s", "wall_s")
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*fixed, *axes])
    for one in samples:
        table.writerow(
            [*(getattr(one, name) for name in fixed), *(one.values.get(a) for a in axes)]
        )
    return text.getvalue()
