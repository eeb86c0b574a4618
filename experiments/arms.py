"""From a place in the plan to a task, and from what came back to the records of its arm."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.executor import Execution
from experiments.plan import Run
from experiments.records import Arm, ArmFailure, Sample
from experiments.spec import AbSpec, LeverSetting
from experiments.tasks import Task, TaskKind, TaskResult
from experiments.values import Scalar
from experiments.witness_records import Witness
from levers.base import OFF


def setting_of(spec: AbSpec, arm: Arm) -> LeverSetting:
    """The tested lever's setting in this arm; an oracle runs none."""
    return LeverSetting(lever=spec.lever, setting=spec.cand if arm == "cand" else spec.ref)


def levers_of(spec: AbSpec, arm: Arm) -> tuple[LeverSetting, ...]:
    """The levers that are on in this arm, the tested one last; one that is off is not imported."""
    if arm == "oracle":
        return ()
    mine = setting_of(spec, arm)
    return (*spec.stack, mine) if mine.setting != OFF else spec.stack


def task_of(spec: AbSpec, run: Run, kind: TaskKind = "measure") -> Task:
    """The task of one run: all runs work on the same inputs, from the comparison's seed."""
    return Task(
        kind=kind,
        arm=run.arm,
        workload=spec.workload,
        parameters=spec.parameters,
        device=spec.device,
        seed=spec.seed,
        levers=levers_of(spec, run.arm),
        subject=setting_of(spec, run.arm),
        implementation=f"oracle:{spec.oracle}" if run.arm == "oracle" else "engine",
        pair=run.pair,
        position=run.position,
    )


def sample_of(run: Run, execution: Execution) -> Sample:
    """The sample of a run that measured; device state and the workload's facts go with it.

    Raises:
        ValueError: the run failed, so there is nothing to sample.
    """
    result, measured = execution.result, execution.result.measurement
    if measured is None:
        raise ValueError(f"pair {run.pair}, {run.arm}: no measurement but {result.failure}")
    seen: Mapping[str, Scalar] = {**result.facts, **measured.facts, **execution.telemetry}
    return Sample(
        pair=run.pair,
        arm=run.arm,
        position=run.position,
        values=measured.values,
        raw=measured.raw,
        start_s=result.start_s,
        warmup_s=result.warmup_s,
        measured_s=result.measured_s,
        wall_s=execution.wall_s,
        started_at=execution.started_at,
        inputs_digest=measured.inputs_digest,
        outputs_count=measured.outputs_count,
        compilations=result.compilations,
        telemetry=seen,
    )


def failure_of(arm: Arm, result: TaskResult) -> ArmFailure | None:
    """The failure of an arm, or None where it did its work."""
    if result.failure is None:
        return None
    return ArmFailure(
        arm=arm,
        kind=result.failure,
        stage=result.stage,
        message=result.message,
        traceback=result.traceback,
    )


def witness_of(arm: Arm, result: TaskResult) -> Witness:
    """What an arm's witness pass saw."""
    return Witness(
        arm=arm,
        plans=result.plans,
        launches=result.launches,
        left_changed=result.left_changed,
        facts=result.facts,
    )
