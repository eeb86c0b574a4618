"""Whose failure it is that a process of the battery did not do its work; torch-free."""

from __future__ import annotations

from typing import Literal

from experiments.records import ArmFailure
from experiments.tasks import Task, TaskResult


def blamed(candidate: ArmFailure, reference: ArmFailure | None) -> tuple[ArmFailure, ...]:
    """Whose failure a candidate's is, given how the reference did at the same work.

    A hook of the lever that fails in both processes is the lever's fault, and the reference has
    none. One that fails in the candidate's alone came after something that the candidate did.
    """
    if reference is None:
        own = "crashed" if candidate.kind == "lever-defective" else candidate.kind
        return (candidate.model_copy(update={"kind": own}),)
    if reference.kind == "lever-defective":
        return (reference.model_copy(update={"arm": "cand"}),)
    return reference, candidate


def failure_of(task: Task, result: TaskResult) -> ArmFailure | None:
    """The failure of a process as a record, or None where it did its work and cleaned up."""
    if result.failure is not None:
        return ArmFailure(
            arm=task.arm,
            kind=result.failure,
            stage=f"parity {task.kind}: {result.stage}".rstrip(": "),
            message=result.message,
            traceback=result.traceback,
        )
    if result.left_changed:
        return failure_at(task, "not-restored", f"left changed: {', '.join(result.left_changed)}")
    return None


def failure_at(task: Task, kind: Literal["crashed", "not-restored"], message: str) -> ArmFailure:
    """A failure of a process that gave no words of its own."""
    return ArmFailure(arm=task.arm, kind=kind, stage=f"parity {task.kind}", message=message)
