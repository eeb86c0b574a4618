"""What the command line asks of a calibration and of a plan (plain values, quick to import)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

DEFAULT_PAIRS = 40
"""A/A pairs of a calibration; 40 to 80 are worth their time (design: statistics)."""


@dataclass(frozen=True, slots=True)
class CalibrateRequest:
    """One calibration as typed.

    Attributes:
        workload: None takes the first one known.
        settings: workload parameters as text.
        budget_s: wall-clock limit of the measuring, in seconds.
        resume: id of an interrupted calibration to go on with.
    """

    workload: str | None = None
    device: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    pairs: int = DEFAULT_PAIRS
    seed: int | None = None
    budget_s: float | None = None
    resume: str | None = None


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What a verdict on a lever would take, as typed.

    Attributes:
        effect: the assumed true effect, a log ratio.
        on: pattern of the primary axes that have it; the other axes have none.
        max_pairs: pairs of the last look, or None for the default plan.
    """

    lever: str
    effect: float
    on: str = "*"
    workload: str | None = None
    device: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    oracle: str | None = None
    max_pairs: int | None = None
