"""The figure of a check's curves: both arms step by step, and their difference beside the band.

The band is what the reference does to itself: the largest and smallest difference of its own
repeats and reorderings at each step. A candidate inside it differs no more than that. One outside
may be the better one: then the same curve in fp64 lies on it, and not on the reference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments import formats
from experiments.parity_records import CheckResult

REFERENCE, CANDIDATE, TRUTH = "reference", "candidate", "truth"
OWN = f"{REFERENCE} "
"""How the names of the reference's own repeats and reorderings begin."""

SIZE_IN = (7.0, 4.2)
INK, BLUE, BAND = "#1f2933", "#0b63c5", "#c3cad2"
TRUTH_LINE = {"linestyle": ":", "linewidth": 1.6, "color": "#d97706"}
"""Drawn over the arms: on the arm that it lies on it must be seen."""

FEW_STEPS = 40
"""Up to this many steps each one is marked; more would hide the line."""

Series = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curves:
    """The curves of one check over the steps that all of them have.

    Attributes:
        reference, candidate: one value a step.
        own: the reference's repeats and reorderings, one row each; empty where it was run once.
        truth: the same in fp64, or empty.
    """

    check: str
    reference: Series
    candidate: Series
    own: Series
    truth: Series

    @property
    def steps(self) -> Series:
        """Numbers of the steps, from 1."""
        return np.arange(1, len(self.reference) + 1, dtype=float)

    @property
    def difference(self) -> Series:
        """Candidate less reference."""
        return self.candidate - self.reference

    @property
    def band(self) -> tuple[Series, Series] | None:
        """Smallest and largest difference of the reference from itself; zero is always inside."""
        if not len(self.own):
            return None
        apart = np.vstack([self.own - self.reference, np.zeros_like(self.reference)])
        return np.fmin.reduce(apart), np.fmax.reduce(apart)

    @property
    def outside(self) -> int | None:
        """Steps at which the candidate leaves the band or is not finite; None without a band."""
        if self.band is None:
            return None
        lower, upper = self.band
        return int(np.sum(~((self.difference >= lower) & (self.difference <= upper))))

    @property
    def caption(self) -> str:
        """What is seen, in one sentence."""
        count = formats.count(len(self.reference), "step")
        said = f"{self.check}: both arms over {count}; below, the difference from the reference"
        if self.outside is None:
            return f"{said} (it was run once: there is no band)"
        runs = formats.count(len(self.own), "repeat")
        said = (
            f"{said} and the band of its own {runs} and reorderings, which the candidate leaves "
            f"at {formats.count(self.outside, 'step')}"
        )
        if not self.has_truth:
            return said
        reference, candidate = map(self.from_truth, (self.reference, self.candidate))
        return f"{said}; furthest from fp64 truth: reference {reference:.2g}, candidate " + (
            f"{candidate:.2g}"
        )

    @property
    def has_truth(self) -> bool:
        """Whether there is a value of truth for every step."""
        return len(self.truth) == len(self.reference) > 0

    def from_truth(self, series: Series) -> float:
        """The largest distance of an arm from truth."""
        return float(np.max(np.abs(series - self.truth)))


def curves_of(check: CheckResult) -> Curves | None:
    """The curves of a check; None where it has none of both arms, or they share no step."""
    series = {name: np.asarray(values, dtype=float) for name, values in check.curves.items()}
    both = series.get(REFERENCE), series.get(CANDIDATE)
    if both[0] is None or both[1] is None:
        return None
    steps = min(len(values) for name, values in series.items() if name != TRUTH)
    if steps == 0:
        return None
    own = [series[name][:steps] for name in _own(check.curves)]
    return Curves(
        check=check.name,
        reference=both[0][:steps],
        candidate=both[1][:steps],
        own=np.vstack(own) if own else np.empty((0, steps)),
        truth=series.get(TRUTH, np.empty(0))[:steps],
    )


def _own(curves: Mapping[str, Sequence[float]]) -> list[str]:
    return sorted(name for name in curves if name.startswith(OWN))


def draw(figure: Any, curves: Curves) -> None:
    """Draw the arms above and their difference below, on one axis of steps."""
    above = figure.add_axes((0.11, 0.47, 0.87, 0.46))
    below = figure.add_axes((0.11, 0.11, 0.87, 0.29), sharex=above)
    _arms(above, curves)
    _differences(below, curves)
    above.tick_params(labelbottom=False)
    above.set_title(f"{curves.check}, step by step", loc="left", fontsize=9, color=INK)
    above.legend(loc="upper right", frameon=False, fontsize=8)
    below.set_xlabel("step")
    below.legend(loc="upper left", frameon=False, fontsize=8, ncols=3)


def _arms(area: Any, curves: Curves) -> None:
    marked = "." if len(curves.steps) <= FEW_STEPS else ""
    for row in curves.own:
        area.plot(curves.steps, row, color=BAND, linewidth=1.0)
    both = (
        (REFERENCE, curves.reference, INK, "-", 2.2),
        (CANDIDATE, curves.candidate, BLUE, "--", 1.2),
    )
    for name, values, colour, line, width in both:
        style = {"linestyle": line, "linewidth": width, "marker": marked}
        area.plot(curves.steps, values, color=colour, label=name, **style)
    if curves.has_truth:
        area.plot(curves.steps, curves.truth, label="fp64 truth", **TRUTH_LINE)
    area.set_ylabel("loss")


def _differences(area: Any, curves: Curves) -> None:
    """The band, zero and the candidate; the axis holds them all with room for the legend."""
    shown = [curves.difference, np.zeros(1)]
    if curves.band is not None:
        lower, upper = curves.band
        shown += [lower, upper]
        named = "the reference's own repeats and reorderings"
        area.fill_between(curves.steps, lower, upper, color=BAND, linewidth=0, label=named)
    area.axhline(0, color=INK, linewidth=0.8)
    area.plot(curves.steps, curves.difference, color=BLUE, linewidth=1.2, label=CANDIDATE)
    if curves.has_truth:
        apart = curves.truth - curves.reference
        area.plot(curves.steps, apart, label="fp64 truth", **TRUTH_LINE)
        shown.append(apart)
    values = np.concatenate(shown)
    most = float(np.max(np.abs(values[np.isfinite(values)])))
    most = most if most > 0 and math.isfinite(most) else 1e-12
    area.set_ylim(-1.15 * most, 1.75 * most)
    area.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
    area.set_ylabel("difference")
