"""The tables of a stack that holds an oracle, or that was measured without the steps between."""

from __future__ import annotations

import math

from experiments import formats
from experiments.oracle_facts import oracle_ran
from experiments.records import Effect
from experiments.stack.records import Contrast, StackRecord
from experiments.stack.view import NOTHING, Table, gain_text, shown_axes


def tables(record: StackRecord) -> tuple[Table, ...]:
    """The whole where no waterfall shows it, and both ends of the stack against the oracle."""
    analysis = record.analysis
    found = [_whole(record, analysis.total)] if analysis.total and not analysis.gains else []
    found += [_oracle(record)] if analysis.oracle else []
    return tuple(found)


def _whole(record: StackRecord, total: Contrast) -> Table:
    rows = tuple((axis.name, gain_text(total, axis.name)) for axis in shown_axes(record))
    note = f"{record.spec.rows[record.spec.whole].name} against no lever, in the same blocks"
    return Table("The whole", ("axis", "all levers against none"), rows, (note,))


def _oracle(record: StackRecord) -> Table:
    """Each axis as a factor of the oracle's, > 1 where the engine is better."""
    reference, whole = record.analysis.oracle
    rows = tuple(
        (axis.name, _ratio(reference, axis.name), _ratio(whole, axis.name))
        for axis in shown_axes(record)
        if whole.effect(axis.name) is not None or whole.missing
    )
    name = record.spec.oracle.oracle if record.spec.oracle else ""
    notes = (
        f"each axis as a factor of the oracle {name}'s, > 1 is better, with its 95 % t interval; "
        f"the oracle ran {record.spec.oracle_mode or 'in an unknown mode'} in the same blocks",
        *filter(None, [oracle_ran(sample for one in record.evidence for sample in one.samples)]),
    )
    return Table("Against the oracle", ("axis", "no lever", "the whole stack"), rows, notes)


def _ratio(one: Contrast, axis: str) -> str:
    effect = one.effect(axis)
    return (one.missing or NOTHING) if effect is None else ratio_text(effect)


def ratio_text(effect: Effect) -> str:
    """An effect as a factor with its interval: ``1.020 [1.011, 1.030]``."""
    ends = (effect.estimate, effect.lower, effect.upper)
    value, lower, upper = (math.exp(max(-700.0, min(700.0, end))) for end in ends)
    return formats.ratio(value, lower, upper)
