"""What may stand in one table: rows of one amount of work, and nothing else.

A gain that is measured between two batch sizes is the lever's and the batch size's at once, and no
statistic takes them apart again. Such a table is refused before anything runs, with the cure. The
same holds for a figure of somebody else's beside a row, and for figures that contradict each other:
at fixed work a utilisation rises by the very factor by which the step gets faster.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from experiments.spec import LeverSetting
from experiments.stack.records import Published
from experiments.values import Scalar
from levers.errors import UnknownName, UsageError

FIRST_ROW = "none"
"""How a published figure names the row without any lever."""

GAIN = "gain"
"""The axis of a published figure that is the row's own speed-up over the row before it."""

ROUNDING = 0.03
"""Log ratio by which published figures of two or three digits may miss each other."""


class Confounded(UsageError):
    """Two rows of one table differ in more than their levers."""


def refuse_other_work(
    first: Mapping[str, Scalar], others: Mapping[str, Scalar], workload: str
) -> None:
    """Refuse a first row with other parameters than the rest.

    Raises:
        Confounded: they differ; says in which.
    """
    names = sorted(
        name for name in first.keys() | others.keys() if first.get(name) != others.get(name)
    )
    if not names:
        return
    said = ", ".join(f"{name}={first.get(name)}" for name in names)
    rest = ", ".join(f"{name}={others.get(name)}" for name in names)
    raise Confounded(
        f"the first row has {said} and the others have {rest}: each gain over it would be the "
        f"levers' and that of {', '.join(names)} at once",
        cure=f"measure all rows at one setting (--set {names[0]}={others.get(names[0])}), "
        f"or make one table of {workload} for each",
    )


def published(
    texts: Sequence[str],
    levers: Sequence[LeverSetting],
    axes: Sequence[str],
    parameters: Mapping[str, Scalar],
) -> tuple[Published, ...]:
    """The published figures, each checked against the row beside which it would stand.

    Args:
        texts: ``ROW AXIS=VALUE PARAMETER=VALUE ...`` with the row named by its last lever (or
            ``none``), such as ``segment_sum_broadcast train/mfu_matmul=17.6 bs=8``; the axis may be
            ``gain``, the speed-up over the row before.
        levers: the levers of the stack, in order.
        axes: names of the axes that rows have.
        parameters: of all rows.

    Raises:
        UnknownName: there is no such row, axis or parameter.
        Confounded: the figure is of other work, or says not of which; or two contradict each other.
    """
    rows = [FIRST_ROW, *(one.lever for one in levers)]
    found = tuple(_figure(text, rows, axes, parameters) for text in texts)
    _refuse_contradictions(found, rows)
    return found


def _figure(
    text: str, rows: Sequence[str], axes: Sequence[str], parameters: Mapping[str, Scalar]
) -> Published:
    words = text.split()
    if len(words) < 2 or "=" not in words[1]:
        raise UsageError(
            f"--published {text!r} names no row and value",
            cure='write --published "LEVER AXIS=VALUE PARAMETER=VALUE", such as bs=8',
        )
    row, (axis, _, value) = words[0], words[1].partition("=")
    if row not in rows:
        raise UnknownName("row", row, rows)
    if axis not in (*axes, GAIN):
        raise UnknownName("axis", axis, (*axes, GAIN))
    stray = [word for word in words[2:] if "=" not in word]
    if stray:
        raise UsageError(
            f"--published {text!r}: {stray[0]!r} says nothing",
            cure="write PARAMETER=VALUE, such as bs=8",
        )
    at = dict(word.split("=", 1) for word in words[2:])
    _refuse_figure(text, at, parameters)
    number = _number(text, value)
    return Published(after="" if row == FIRST_ROW else row, axis=axis, value=number, at=at)


def _number(text: str, value: str) -> float:
    """A figure that can be put in a ratio."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise UsageError(
            f"--published {text!r}: {value!r} is no figure", cure="give a number above 0"
        )
    return number


def _refuse_figure(text: str, at: Mapping[str, str], parameters: Mapping[str, Scalar]) -> None:
    """Refuse a figure of other work than the rows', or of work that is not stated."""
    if not at:
        raise Confounded(
            f"--published {text!r} does not say at which parameters it was measured",
            cure='state them, the batch size above all: "... bs=8"',
        )
    for name, value in at.items():
        if name not in parameters:
            raise UnknownName("parameter", name, parameters)
        if str(parameters[name]) != value:
            raise Confounded(
                f"--published {text!r} is of {name}={value} and the rows are of "
                f"{name}={parameters[name]}",
                cure=f"measure the rows with --set {name}={value}, or leave the figure out",
            )


def _refuse_contradictions(figures: Sequence[Published], rows: Sequence[str]) -> None:
    """Refuse utilisations whose ratio is not the gain that is published with them."""
    by_row = {
        row: {one.axis: one.value for one in figures if (one.after or FIRST_ROW) == row}
        for row in rows
    }
    for before, row in itertools.pairwise(rows):
        gain = by_row[row].get(GAIN)
        if gain is None:
            continue
        for axis in [one for one in by_row[row] if "mfu" in one and one in by_row[before]]:
            rise = by_row[row][axis] / by_row[before][axis]
            if abs(math.log(rise / gain)) > ROUNDING:
                raise Confounded(
                    f"the published figures contradict each other: {axis} rises {rise:.2f}x from "
                    f"{before} to {row}, and the gain is {gain:.2f}x; at fixed work both are the "
                    "same, so the two rows did other work (another batch size, most likely)",
                    cure=f"leave out the figure of {before}, or give one of the same batch size",
                )
