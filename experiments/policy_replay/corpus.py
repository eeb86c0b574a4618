"""A corpus of recorded decisions: what people once measured and decided about levers.

One JSON object a line. A recorded value is a single number without an interval, a parity gate is a
count of passes, and much is missing: what was not written down stays None and is never made up.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError, model_validator

from experiments.records import Outcome
from experiments.values import FrozenMap, Value, problem_of
from levers.errors import BadParameter

Verdict = Literal["default-ON", "gated-OFF", "terminal", "rejected", "deferred", "other"]

COUNTS_AS: dict[Verdict, Outcome | None] = {
    "default-ON": Outcome.DEFAULT_ON,
    "gated-OFF": Outcome.GATED_OFF,
    "terminal": Outcome.TERMINAL,
    "rejected": Outcome.GATED_OFF,
    "deferred": None,
    "other": None,
}
"""The outcome that a recorded verdict is; None is no verdict on the lever, and is left out."""

FAILURE_WORDS = ("failed", "diverges", "flips")
"""Words of a note that fail a gate without a count; no word ever passes one."""

EARLIER_COUNT = re.compile(r"was (\d+)")
"""A note such as ``was 4``: how many cases of the same gate the reference passed."""


class RecordedGate(Value):
    """One parity gate: how many cases passed; None where the count was not written down."""

    gate: str
    passed: int | None = None
    total: int | None = None
    note: str = ""

    @property
    def counted(self) -> bool:
        """Whether both counts are there."""
        return self.passed is not None and self.total is not None and self.total > 0

    @property
    def failed_in_words(self) -> bool:
        """Whether the note says that a gate without a count failed."""
        words = self.note.lower().split()
        return not self.counted and any(word in words for word in FAILURE_WORDS)

    @property
    def reference_passed(self) -> int | None:
        """What the reference had passed, where the note of the gate says so."""
        found = EARLIER_COUNT.search(self.note)
        return int(found[1]) if found else None

    @property
    def whole(self) -> bool:
        """Whether every case passed."""
        return self.counted and self.passed == self.total

    @model_validator(mode="after")
    def _possible(self) -> RecordedGate:
        if self.passed is not None and self.total is not None and self.passed > self.total:
            raise ValueError(f"{self.gate}: {self.passed} passed of {self.total}")
        return self


class RecordedAxis(Value):
    """One axis: a value of each arm, or the ratio to an outside implementation before and after.

    The ratios are at least 1 where the target is met, whichever way the axis points.
    """

    axis: str
    unit: str
    higher_is_better: bool
    ref_value: float | None = None
    cand_value: float | None = None
    oracle_ratio_before: float | None = None
    oracle_ratio_after: float | None = None
    failing_before: bool | None = None

    @property
    def effect(self) -> float | None:
        """The log ratio, > 0 is better; None where one of the arms was not written down.

        Without values, two ratios to the same outside implementation give it too.
        """
        direct = _log_ratio(self.ref_value, self.cand_value)
        if direct is not None:
            return direct if self.higher_is_better else -direct
        return _log_ratio(self.oracle_ratio_before, self.oracle_ratio_after)


class RecordedDecision(Value):
    """One recorded decision about one lever, with all that was written down beside it.

    ``byte_exact`` is None where nobody claimed it.
    """

    id: str
    lever: str
    kind: str
    verdict: Verdict
    arms: FrozenMap[str]
    parity: tuple[RecordedGate, ...] = ()
    axes: tuple[RecordedAxis, ...] = ()
    byte_exact: bool | None = None
    description: str = ""
    hardware: str = ""
    workload: str = ""
    noise: str | None = None
    raw_label: str = ""
    reason: str = ""
    source: str = ""

    @property
    def outcome(self) -> Outcome | None:
        """The recorded verdict as an outcome; None where it is left out."""
        return COUNTS_AS[self.verdict]

    @model_validator(mode="after")
    def _complete(self) -> RecordedDecision:
        names = [one.axis for one in self.axes]
        if len(set(names)) < len(names):
            raise ValueError(f"an axis is recorded twice: {', '.join(names)}")
        if {"ref", "cand"} - set(self.arms):
            raise ValueError("arms need a ref and a cand")
        return self


def read(path: Path) -> tuple[RecordedDecision, ...]:
    """The decisions of a JSONL file, in order.

    Raises:
        BadParameter: the file cannot be read, holds no decision, or a line is none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        cure = "name a file with one JSON object a line"
        said = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise BadParameter(f"cannot read {path}: {said}", cure=cure) from error
    filled = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    found = tuple(_parsed(path, number, line) for number, line in filled)
    twice = {one.id for one in found if sum(other.id == one.id for other in found) > 1}
    if twice or not found:
        said = f"holds {', '.join(sorted(twice))} more than once" if twice else "holds no decision"
        raise BadParameter(f"{path} {said}", cure="give each decision one line and one id")
    return found


def _parsed(path: Path, number: int, line: str) -> RecordedDecision:
    try:
        values: Any = json.loads(line)
        return RecordedDecision.model_validate(values)
    except ValidationError as error:
        said = problem_of(error)
    except ValueError as error:
        said = f"no JSON: {error}"
    cure = "each line is one object with id, lever, kind, arms, verdict, parity and axes"
    raise BadParameter(f"{path}, line {number}: {said}", cure=cure)


def _log_ratio(before: float | None, after: float | None) -> float | None:
    if before is None or after is None:
        return None
    if not (0 < before < math.inf and 0 < after < math.inf):
        return None
    return math.log(after / before)
