"""The table of a stack that says how far each row's step is from its bandwidth floor."""

from __future__ import annotations

from experiments.floors import count_of, floors_of
from experiments.stack.records import RowEvidence, StackRecord
from experiments.stack.view import NOTHING, Table

NOTE = (
    "median step over the time that its weights, as they are stored, and its caches take at the "
    "device's copy rate"
)


def tables(record: StackRecord) -> tuple[Table, ...]:
    """One line for each row that states it; no table where no speed is shown or none states it."""
    if record.status != "measured":
        return ()
    found = [(one.row.name, _of_row(record, one)) for one in record.evidence]
    stated = [(name, ratios) for name, ratios in found if ratios]
    names = list(dict.fromkeys(fact for _, ratios in stated for fact in ratios))
    rows = tuple((name, *(_text(ratios.get(fact)) for fact in names)) for name, ratios in stated)
    columns = ("levers", *map(count_of, names))
    return (Table("Step as a multiple of its bandwidth floor", columns, rows, (NOTE,)),) * bool(
        rows
    )


def _of_row(record: StackRecord, one: RowEvidence) -> dict[str, float]:
    """Of a row's own processes; where rows take turns, no lever is what ran beside each of them."""
    shared = record.spec.interleaved and one.row.arm == "ref"
    rows = record.evidence if shared else (one,)
    return floors_of(s for row in rows for s in row.samples if s.arm == one.row.arm)


def _text(ratio: float | None) -> str:
    return NOTHING if ratio is None else f"{ratio:.2f}"
