"""The lossless bounds of the design, and the ratio they are laid on; torch-free."""

from __future__ import annotations

import math

NORM_RATIO = 1.05
ROW_RATIO = 1.25
"""Candidate error over reference error against fp64 truth: L2 norm, and 99th percentile of rows."""


def ratio(candidate: float, reference: float) -> float:
    """Candidate error over reference error; 1 where both are 0, infinite where only one is."""
    if candidate == 0.0:
        return 1.0 if reference == 0.0 else 0.0
    return candidate / reference if reference else math.inf


def times(found: float) -> str:
    """A ratio in words: ``1.2x``; where the reference is exact there is none to name."""
    return "where the reference's is 0" if math.isinf(found) else f"{found:.3g}x"


def beside(found: float) -> str:
    """A ratio as the end of "error ...": ``1.2x the reference's``."""
    return times(found) if math.isinf(found) else f"{times(found)} the reference's"


def lossless(norm_ratio: float, row_ratio: float) -> bool:
    """Whether the candidate's error is no larger than the reference's."""
    return norm_ratio <= NORM_RATIO and row_ratio <= ROW_RATIO
