"""The whole record of one A/B: what was asked, what was seen, what was decided.

The evidence bundle is this record as JSON; a stored verdict can be decided again from it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from experiments.parity_records import ParityReport
from experiments.records import (
    ArmFailure,
    Decision,
    Environment,
    Look,
    LostPair,
    Outcome,
    RunStatus,
    Sample,
    Timing,
)
from experiments.spec import AbSpec
from experiments.values import SCHEMA_VERSION, FrozenMap, Value
from experiments.witness_records import Witness
from experiments.workloads.base import Target
from levers.policy import Axis, ParityClass


class RunRecord(Value):
    """One A/B comparison with all its evidence.

    Attributes:
        run_id: sortable and unique (UTC time and random digits).
        axes: the axes of the workload in this run.
        faults: reasons found by the runner that end a run (reason code of ``invalid``, text).
        targets: the targets of the primary axes, as the workload stated them for this run.
        impossible: per axis, the value that no implementation can beat on this device.
        capacities: per axis, what an absolute guard's ceiling is a share of, in the axis's unit.
        oracle_mode: how the oracle must run to be the mode that its users run; empty if unknown.
        warnings: what a reader must know beside the verdict.
        kind: only ``ab`` is a verdict; ``family`` is one setting's part in the selection among
            several, ``screen`` a look inside one process, ``stack`` one row of a stack.
        plan_digest: digest of spec, policy and schedule, stored before the first sample.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: str
    status: RunStatus
    spec: AbSpec
    plan_digest: str
    created_at: str
    axes: tuple[Axis, ...]
    targets: tuple[Target, ...] = ()
    impossible: FrozenMap[float] = Field(default_factory=dict)
    capacities: FrozenMap[float] = Field(default_factory=dict)
    oracle_mode: str = ""
    environment: Environment
    witnesses: tuple[Witness, ...] = ()
    parity: ParityReport | None = None
    samples: tuple[Sample, ...] = ()
    lost: tuple[LostPair, ...] = ()
    failures: tuple[ArmFailure, ...] = ()
    faults: tuple[tuple[str, str], ...] = ()
    looks: tuple[Look, ...] = ()
    decision: Decision | None = None
    timing: Timing | None = None
    warnings: tuple[str, ...] = ()
    kind: Literal["ab", "screen", "family", "calibration", "stack"] = "ab"

    @model_validator(mode="after")
    def _legal(self) -> RunRecord:
        if (self.decision is not None) != (self.status == "decided"):
            raise ValueError(f"a run that is {self.status} carries {self.decision}")
        broken = self.parity is not None and self.parity.parity_class is ParityClass.BROKEN
        if broken and (self.looks or any(s.arm == "cand" for s in self.samples)):
            raise ValueError("parity is broken: no speed of the candidate may be recorded")
        on = self.decision is not None and self.decision.outcome is Outcome.DEFAULT_ON
        if on and (self.failures or self.faults or self.parity is None or broken):
            raise ValueError("a run with a failure, a fault or no parity cannot be default-ON")
        return self

    def axis(self, name: str) -> Axis:
        """The axis of that name.

        Raises:
            KeyError: this run has no such axis.
        """
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise KeyError(name)
