"""What the parity battery reports: its checks, and the class that they leave possible."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from experiments.values import FrozenMap, Scalar, Value
from levers.policy import ParityClass

CheckStatus = Literal["passed", "failed", "empty", "not-run", "reference-fault", "lever-defective"]


CaseStatus = Literal[
    "passed", "failed", "empty", "not-finite", "not-deterministic", "reference-failed"
]


class CaseResult(Value):
    """What one op case showed. ``fault`` says in words what is wrong, and where.

    ``powerless`` names the null candidates that this case would let pass, ``same`` the work that
    both arms do alike, where nothing is compared; ``apart`` is the relative distance of the arms
    from each other.
    """

    name: str
    status: CaseStatus
    parity: ParityClass = ParityClass.BROKEN
    fault: str = ""
    norm_ratio: float = 0.0
    row_ratio: float = 0.0
    candidate_error: float = 0.0
    reference_error: float = 0.0
    apart: float = 0.0
    deterministic: bool = True
    powerless: tuple[str, ...] = ()
    same: str = ""
    draws: int = 1
    digest: str = ""


class CheckResult(Value):
    """One check of the battery: how many cases passed, the worst one, and what it allows to claim.

    ``status``: ``empty`` compared nothing (invalid); ``not-run`` says why in ``detail`` (no CUDA
    here); ``reference-fault`` found the reference itself at fault, with ``fault`` saying how;
    ``lever-defective``: the kill switch at off differs from a process without the lever.
    ``strongest`` is the strongest class that this check leaves possible. ``curves`` are series to
    draw, by name (training losses step by step: ``reference``, ``candidate``, ``reference repeat
    1``, ``reference reordered 1``, ``truth``); empty where a check has none.
    """

    name: str
    status: CheckStatus
    passed: int
    total: int
    worst: str = ""
    where: str = ""
    detail: str = ""
    strongest: ParityClass = ParityClass.BYTE_EXACT
    fault: Literal["", "not-finite", "not-deterministic", "failed"] = ""
    figures: FrozenMap[Scalar] = Field(default_factory=dict)
    curves: FrozenMap[tuple[float, ...]] = Field(default_factory=dict)
    digest: str = ""
    cached: bool = False
    seconds: float = 0.0

    @model_serializer(mode="wrap")
    def _without_empty_curves(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A check without curves is written as it was before there were any: its digest stays."""
        written: dict[str, Any] = handler(self)
        if not self.curves:
            written.pop("curves", None)
        return written

    @model_validator(mode="after")
    def _compared(self) -> CheckResult:
        if not 0 <= self.passed <= self.total:
            raise ValueError(f"{self.name}: {self.passed} passed of {self.total}")
        if self.status == "passed" and (self.total == 0 or self.passed < self.total):
            raise ValueError(f"{self.name} cannot pass with {self.passed} of {self.total}")
        if self.status in ("empty", "not-run") and self.total:
            raise ValueError(f"{self.name} is {self.status}, so it compared nothing")
        if self.status == "failed" and self.strongest is not ParityClass.BROKEN:
            raise ValueError(f"{self.name} failed, so no class but broken is possible")
        return self


class ParityReport(Value):
    """The battery's results, and the class of the run: the weaker of claim and measurement."""

    checks: tuple[CheckResult, ...]
    claimed: ParityClass

    @property
    def measured(self) -> ParityClass:
        """The weakest of the classes that the checks left possible."""
        result = ParityClass.BYTE_EXACT
        for check in self.checks:
            result = result.weaker(check.strongest)
        return result

    @property
    def parity_class(self) -> ParityClass:
        """What this run may call itself."""
        return self.claimed.weaker(self.measured)
