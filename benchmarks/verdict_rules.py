"""The rules that other tools decide by, on drawn runs: scores above zero say that it is faster.

Each rule gives its scores for several true effects at once. A true effect moves all of the
candidate's log times by the same amount, so most of the work is done once: only ranks change.

Shape suffixes: R drawn runs, n processes of an arm, N = 2n.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats as scipy_stats

Floats = NDArray[np.float64]
Scores = list[Floats]
Rate = Callable[[Floats, Floats, Sequence[float]], Scores]
"""(reference's and candidate's log times ``[R, n]``, shifts) -> scores ``[R]`` for each shift."""

SIZES = (1, 3, 5, 6, 8, 10, 13, 18, 25, 40, 60, 90, 130, 200, 300)
USUAL_SIZE = 10
"""Runs of an arm that tools usually take."""

FALSE_LIMIT = 0.05

EXACT = 8
"""Up to so many runs of an arm the null distribution of U is counted, beyond it is normal."""

LAYOUTS = ("legs", "alternating", "shuffled")


def difference(ref_Rn: Floats, cand_Rn: Floats, shifts: Sequence[float]) -> Scores:
    """Log ratio of the arms' mean times."""
    plain = np.log(np.exp(ref_Rn).mean(axis=1)) - np.log(np.exp(cand_Rn).mean(axis=1))
    return [plain + shift for shift in shifts]


def welch(ref_Rn: Floats, cand_Rn: Floats, shifts: Sequence[float]) -> Scores:
    """Student's t with unequal variances: -log10 p, signed."""
    n = ref_Rn.shape[1]
    squares = [arm.var(axis=1, ddof=1) / n for arm in (ref_Rn, cand_Rn)]
    error = np.sqrt(squares[0] + squares[1])
    dof = (squares[0] + squares[1]) ** 2 / sum(square**2 / (n - 1) for square in squares)
    apart = ref_Rn.mean(axis=1) - cand_Rn.mean(axis=1)
    scores = []
    for shift in shifts:
        t = (apart + shift) / error
        scores.append(_score(t, 2 * scipy_stats.t.sf(np.abs(t), dof)))
    return scores


def overlap(ref_Rn: Floats, cand_Rn: Floats, shifts: Sequence[float]) -> Scores:
    """Distance of the means over the sum of both 95 % half-widths; above 1 they do not overlap."""
    n = ref_Rn.shape[1]
    widths = [arm.std(axis=1, ddof=1) / math.sqrt(n) for arm in (ref_Rn, cand_Rn)]
    wide = float(scipy_stats.t.ppf(0.975, n - 1)) * (widths[0] + widths[1])
    apart = ref_Rn.mean(axis=1) - cand_Rn.mean(axis=1)
    return [(apart + shift) / wide for shift in shifts]


def mann_whitney(ref_Rn: Floats, cand_Rn: Floats, shifts: Sequence[float]) -> Scores:
    """The rank-sum test with ties, two-sided: -log10 p, signed."""
    n = ref_Rn.shape[1]
    scores = []
    for shift in shifts:
        u_R, ties_R = u_statistic(ref_Rn, cand_Rn - shift)
        larger_R = np.maximum(u_R, n * n - u_R)
        p = exact_p(n)[larger_R.astype(int)] if n <= EXACT else normal_p(larger_R, ties_R, n)
        scores.append(_score(u_R - n * n / 2, p))
    return scores


def u_statistic(ref_Rn: Floats, cand_Rn: Floats) -> tuple[Floats, Floats]:
    """Mann and Whitney's U of the reference, and the sum of ``c**3 - c`` over groups of c ties."""
    n = ref_Rn.shape[1]
    both_RN = np.concatenate([ref_Rn, cand_Rn], axis=1)
    order_RN = both_RN.argsort(axis=1)
    values_RN = np.take_along_axis(both_RN, order_RN, axis=1)
    begins_RN = np.ones(both_RN.shape, dtype=bool)
    begins_RN[:, 1:] = values_RN[:, 1:] != values_RN[:, :-1]
    at_N = np.arange(2 * n)
    if begins_RN.all():
        ranks_R = np.where(order_RN < n, at_N, 0).sum(axis=1) + n
        return ranks_R - n * (n + 1) / 2, np.zeros(len(both_RN))
    first_RN = np.maximum.accumulate(np.where(begins_RN, at_N, 0), axis=1)
    ends_RN = np.roll(begins_RN, -1, axis=1)
    last_RN = np.minimum.accumulate(np.where(ends_RN, at_N, 2 * n)[:, ::-1], axis=1)[:, ::-1]
    ranks_R = np.where(order_RN < n, (first_RN + last_RN) / 2 + 1, 0.0).sum(axis=1)
    count_RN = (last_RN - first_RN + 1).astype(np.float64)
    return ranks_R - n * (n + 1) / 2, (count_RN**2 - 1).sum(axis=1)


def normal_p(larger_R: Floats, ties_R: Floats, n: int) -> Floats:
    """Two-sided p of the larger U, with corrections for continuity and ties."""
    total = 2 * n
    sd_R = np.sqrt(n * n / 12 * (total + 1 - ties_R / (total * (total - 1))))
    p: Floats = np.minimum(1.0, 2 * scipy_stats.norm.sf((larger_R - n * n / 2 - 0.5) / sd_R))
    return p


@functools.cache
def exact_p(n: int) -> Floats:
    """Two-sided p by the larger U, of two arms of n without ties: all orders are as likely."""
    ways = np.zeros((n + 1, n + 1, n * n + 1))
    ways[0, :, 0] = ways[:, 0, 0] = 1
    for i in range(1, n + 1):
        for j in range(1, n + 1):  # the largest of all is of the first arm, or of the second
            ways[i, j] = ways[i, j - 1]
            ways[i, j, j:] += ways[i - 1, j, : n * n + 1 - j]
    tail = ways[n, n][::-1].cumsum()[::-1]
    p: Floats = np.minimum(1.0, 2 * tail / tail[0])
    return p


def _score(direction: Floats, p: Floats) -> Floats:
    return np.sign(direction) * -np.log10(np.maximum(p, 1e-300))


@dataclass(frozen=True)
class Rule:
    """A rule of other tools; ``threshold`` is as used, None the smallest difference worth it."""

    name: str
    rate: Rate
    threshold: float | None = None
    most: int = SIZES[-1]

    def takes(self, n: int) -> bool:
        """Whether so many runs of an arm are a use of it."""
        return (n == 1) == (self.most == 1)


P05 = -math.log10(0.05)
RULES = (
    Rule("one run each", difference, None, 1),
    Rule("means with a threshold", difference),
    Rule("Welch t, unpaired", welch, P05),
    Rule("Mann-Whitney, unpaired", mann_whitney, P05),
    Rule("intervals overlap", overlap, 1.0),
)


def arms(rng: np.random.Generator, x_Rn2: Floats, n: int, layout: str) -> tuple[Floats, Floats]:
    """The reference's and the candidate's n runs each, by the order in which a tool makes them."""
    if layout == "shuffled":
        first = rng.random((len(x_Rn2), n)) < 0.5
        one, other = x_Rn2[:, :n, 0], x_Rn2[:, :n, 1]
        return np.where(first, one, other), np.where(first, other, one)
    if layout == "alternating":
        return x_Rn2[:, :n, 0], x_Rn2[:, :n, 1]
    in_time = x_Rn2[:, :n].reshape(len(x_Rn2), 2 * n)
    return in_time[:, :n], in_time[:, n:]
