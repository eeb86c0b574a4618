"""A stack as the texts of every report: tables, what they mean, and that it is no verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from experiments import formats
from experiments.dose import taken_over
from experiments.spec import told
from experiments.stack.published import FIRST_ROW, GAIN
from experiments.stack.records import Contrast, Row, RowEvidence, StackRecord
from levers.policy import Axis

LABEL = "STACK: a measurement, no verdict"
NOTHING = "-"
LEVEL = 0.05
"""Adjusted p below which a gain counts as told from zero (Holm over its table)."""

BYTES = ("B", "bytes")
"""Units whose values carry their own multiple, so that the heading needs none."""

MOST_TEXT = 200
"""Characters of a failure that a cell shows; the record has it whole."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table: its title, columns and rows, and what a reader must know of it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StackView:
    """A stack in words.

    Attributes:
        refusal: why no speed is shown; empty where it is.
        facts: names and texts of where and how it was measured.
    """

    label: str
    title: str
    refusal: str
    tables: tuple[Table, ...]
    warnings: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    reference: str


def view(record: StackRecord) -> StackView:
    """The texts of a stack."""
    spec = record.spec
    tables = [_waterfall(record)] if record.analysis.gains else []
    tables += [_left_out(record)] if record.analysis.left_out else []
    tables += [_interactions(record)] if record.analysis.interactions else []
    tables += [_published(record)] if spec.published and record.analysis.gains else []
    tables += [_parity(record)] if record.evidence else []
    here = record.environment
    return StackView(
        label=LABEL,
        title=f"{spec.workload} on {here.device_kind}: {' + '.join(map(str, spec.levers))}",
        refusal=_refusal(record),
        tables=tuple(tables),
        warnings=(*record.warnings, *_warnings(record)),
        facts=_facts(record),
        reference=f"stack {record.stack_id}",
    )


def _refusal(record: StackRecord) -> str:
    """Why there is no speed."""
    if record.status == "measured":
        return ""
    said = "; ".join(f"{code}: {text}" for code, text in record.faults)
    if record.status == "refused":
        return f"no speed is shown: {said}"
    return f"{record.status}: go on with levergate stack {record.spec.workload} --resume " + (
        record.stack_id
    )


def _warnings(record: StackRecord) -> list[str]:
    return [
        f"{one.name} is inert: its sites ran the same with it and without it"
        for one in record.analysis.gains
        if one.inert
    ]


def _facts(record: StackRecord) -> tuple[tuple[str, str], ...]:
    spec, analysis = record.spec, record.analysis
    names = sorted(spec.parameters)
    counted = f"{len(analysis.blocks)} of {spec.blocks} count"
    return (
        ("measured", formats.day(record.created_at)),
        ("device", f"{record.environment.device_kind} ({spec.device})"),
        ("stack", record.environment.stack),
        ("parameters", ", ".join(f"{name}={spec.parameters[name]}" for name in names)),
        *((("tokens on", on),) if (on := told(spec.tokens_on, spec.parameters)) else ()),
        ("blocks", "; ".join(filter(None, (counted, record.stopped)))),
        ("rows", f"{len(spec.rows)}, each once in every block, in mirrored random orders"),
        *(("takes over", one) for one in taken_over(record)),
        ("seed", str(spec.seed)),
        ("took", formats.duration(record.total_s)),
    )


# --- the waterfall ------------------------------------------------------------------------------


def shown_axes(record: StackRecord) -> tuple[Axis, ...]:
    """The axes of the table: all that a row has but the warm-up, which no lever is judged by."""
    return tuple(axis for axis in record.axes if not axis.name.startswith("compile/"))


def _waterfall(record: StackRecord) -> Table:
    spec, analysis = record.spec, record.analysis
    axes = shown_axes(record)
    first = (
        "0",
        "no lever",
        *_values(record, spec.rows[0], axes),
        NOTHING,
        NOTHING,
        NOTHING,
    )
    rows = [first]
    for k, gain in enumerate(analysis.gains, 1):
        said = (gain_text(gain, spec.axis), _p(gain), _so_far(record, k))
        rows.append(
            (str(k), f"+ {spec.levers[k - 1]}", *_values(record, spec.rows[k], axes), *said)
        )
    columns = ("row", "levers", *(_heading(axis) for axis in axes), "own gain", "p", "so far")
    notes = [_sum_text(record), _reading(spec.axis)]
    if spec.interleaved:
        notes.append("each row ran in turns with a process without levers, and is its ratio to it")
    return Table("Waterfall", columns, tuple(rows), tuple(notes))


def _values(record: StackRecord, row: Row, axes: Sequence[Axis]) -> list[str]:
    values = record.analysis.values[row.index]
    return [
        formats.quantity(values[axis.name], axis.unit if axis.unit in BYTES else "")
        if axis.name in values
        else NOTHING
        for axis in axes
    ]


def _heading(axis: Axis) -> str:
    unit = "" if axis.unit in BYTES else f" {axis.unit}"
    return f"{axis.name.rpartition('/')[2]}{unit}"


def gain_text(one: Contrast, axis: str) -> str:
    """A gain as a factor and in percent with its interval, or why there is none."""
    effect = one.effect(axis)
    if effect is None:
        return (one.missing or "not measured")[:MOST_TEXT]
    factor = math.exp(effect.estimate)
    text = f"{factor:.3f}x ({formats.effect(effect.estimate, effect.lower, effect.upper)})"
    return f"{text}, inert" if one.inert else text


def _p(one: Contrast) -> str:
    if one.p is None:
        return NOTHING
    return "< 0.001" if one.p < 1e-3 else f"{one.p:.3f}"


def _so_far(record: StackRecord, k: int) -> str:
    """The product of the gains up to a row."""
    found = [one.effect(record.spec.axis) for one in record.analysis.gains[:k]]
    if any(one is None for one in found):
        return NOTHING
    return f"{math.exp(math.fsum(one.estimate for one in found if one is not None)):.3f}x"


def _sum_text(record: StackRecord) -> str:
    """That nothing is counted twice: the log gains add up to the log of the total."""
    analysis, total = record.analysis, record.analysis.total
    effect = None if total is None else total.effect(record.spec.axis)
    if analysis.log_sum is None or effect is None:
        return "a gain is missing, so the gains of this table do not add up to the whole"
    whole = formats.effect(effect.estimate, effect.lower, effect.upper)
    return (
        f"the whole stack: {math.exp(effect.estimate):.3f}x ({whole}), measured in the same "
        f"blocks; the logs of the own gains add up to {analysis.log_sum:+.5f}, the log of the "
        f"whole is {effect.estimate:+.5f}: no gain is counted twice"
    )


def _reading(axis: str) -> str:
    return (
        f"own gain on {axis}: each row against the row above it, in the same blocks, with its "
        f"95 % t interval; p is of no effect, adjusted over the table (Holm); below {LEVEL} it is "
        "told from zero"
    )


# --- the other tables ---------------------------------------------------------------------------


def _left_out(record: StackRecord) -> Table:
    axis, analysis = record.spec.axis, record.analysis
    own = [gain_text(one, axis) for one in analysis.gains] or [NOTHING] * len(analysis.left_out)
    rows = tuple(
        (one.name, gain_text(one, axis), _p(one), first)
        for one, first in zip(analysis.left_out, own, strict=True)
    )
    columns = ("lever", "brings to the whole", "p", "own gain in the waterfall")
    note = (
        "the whole stack against the whole without that lever; where it differs from the own gain, "
        "the lever meets others that were added after it"
    )
    return Table("Leave one out", columns, rows, (note,))


def _interactions(record: StackRecord) -> Table:
    spec = record.spec
    rows = []
    for overlap, one in zip(spec.overlaps, record.analysis.interactions, strict=True):
        rows.append(
            (one.name, overlap.why, gain_text(one, spec.axis), _p(one), _meaning(one, spec.axis))
        )
    columns = ("levers", "why they may meet", "both / (first x second)", "p", "meaning")
    note = (
        "each alone, both, and neither, all in the same blocks; 1 is what independent levers have"
    )
    return Table("Pairs that overlap", columns, tuple(rows), (note,))


def _meaning(one: Contrast, axis: str) -> str:
    effect = one.effect(axis)
    if effect is None or one.p is None:
        return NOTHING
    if one.p >= LEVEL:
        return "not told from independent"
    return "they help each other" if effect.estimate > 0 else "they overlap"


def _published(record: StackRecord) -> Table:
    rows = []
    names = [FIRST_ROW, *(one.lever for one in record.spec.levers)]
    for figure in record.spec.published:
        k = names.index(figure.after or FIRST_ROW)
        at = ", ".join(f"{name}={value}" for name, value in figure.at.items())
        rows.append(
            (
                f"{k}: {figure.after or FIRST_ROW}",
                figure.axis,
                f"{figure.value:g}",
                at,
                _ours(record, k, figure.axis),
            )
        )
    columns = ("row", "axis", "published", "at", "measured here")
    note = "other hardware, other versions: two figures side by side, and no comparison in pairs"
    return Table("Published figures", columns, tuple(rows), (note,))


def _ours(record: StackRecord, k: int, axis: str) -> str:
    if axis == GAIN:
        return gain_text(record.analysis.gains[k - 1], record.spec.axis) if k else NOTHING
    value = record.analysis.values[k].get(axis)
    return NOTHING if value is None else formats.quantity(value, record.axis(axis).unit)


def _parity(record: StackRecord) -> Table:
    rows = tuple(_parity_row(one) for one in record.evidence if one.row.levers)
    columns = ("levers", "parity", "passed", "worst", "measured")
    note = "each set against no lever: training curve and every gradient against fp64 truth"
    return Table("Parity of each set", columns, rows, (note,))


def _parity_row(one: RowEvidence) -> tuple[str, ...]:
    if one.parity is None:
        return (one.row.name, "not checked", NOTHING, NOTHING, one.failed[:MOST_TEXT] or "no")
    check = one.parity.checks[0]
    passed = check.status == "passed"
    said = one.parity.parity_class.value if passed else check.status
    worst = check.worst if passed else check.worst or check.detail
    ran = formats.count(len(one.samples), "sample")
    return (
        one.row.name,
        said,
        f"{check.passed}/{check.total}",
        worst[:MOST_TEXT] or NOTHING,
        one.failed[:MOST_TEXT] or ran,
    )
