"""What every check of the battery works with: the comparison, its arms, and fresh processes.

Torch-free. A process that fails is an outcome: the battery hands it on as :class:`ArmFailure`, and
whether the reference could do the same work is found out before the candidate is blamed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from experiments.parity.arms import Arms
from experiments.parity.blame import blamed, failure_at, failure_of
from experiments.parity.kept_outputs import Answered, KeptOutputs
from experiments.parity.limits import Limits, concurrencies
from experiments.parity_records import CheckResult
from experiments.records import ArmFailure
from experiments.spec import AbSpec, LeverSetting
from experiments.tasks import Outputs, Task, TaskKind, TaskResult
from experiments.values import Scalar
from experiments.workloads.base import Workload
from levers.base import OFF, Lever
from levers.policy import ParityClass

Execute: TypeAlias = Callable[[Task], TaskResult]
"""Runs a task in a fresh process (the runner's)."""

Ahead: TypeAlias = Callable[[Sequence[Task]], None]
"""Is told of tasks that will be asked for, so that ``execute`` may have them at work."""

BYTE_EXACT_REPEATS = 30
"""Runs on equal inputs where byte-exactness is claimed: a known nondeterministic backward differed
in 29 of 30 runs, another in one of ten, which two runs would often miss."""

CAPTURES = "cuda_graph"
"""The lever that captures the step where the workload's parameters do not."""


class ProcessFailed(Exception):
    """A measured process could not do its work; carries the failures, the reference's first."""

    def __init__(self, failures: tuple[ArmFailure, ...]) -> None:
        super().__init__("; ".join(f"{one.arm} {one.kind} at {one.stage}" for one in failures))
        self.failures = failures


class Bench:
    """The comparison under test, and the processes that were already run for it.

    ``parts`` is the number of processes that share the op cases, ``kept`` has streams of earlier
    comparisons, ``answered`` what is known without another process, and ``ahead`` is told of
    processes before they are asked for.
    """

    def __init__(
        self,
        spec: AbSpec,
        lever: Lever,
        workload: Workload,
        execute: Execute,
        device_type: str,
        limits: Limits | None = None,
        parts: int = 1,
        kept: KeptOutputs | None = None,
        ahead: Ahead | None = None,
    ) -> None:
        self.spec, self.lever, self.workload = spec, lever, workload
        self.device_type = device_type
        self.limits = limits or Limits.usual(device_type)
        self.parts = parts
        self.answered = Answered(kept)
        self._ahead = ahead
        self._execute = execute

    @property
    def alone(self) -> Arms:
        """The lever by itself, without the default-ON set."""
        return Arms((self._setting(self.spec.ref),), (self._setting(self.spec.cand),))

    @property
    def stacked(self) -> Arms:
        """The lever together with the default-ON set, against that set."""
        one, other, stack = self.alone.ref, self.alone.cand, self.spec.stack
        return Arms((*stack, *one), (*stack, *other), " + ".join(map(str, stack)))

    def _setting(self, setting: str) -> LeverSetting:
        return LeverSetting(lever=self.lever.name, setting=setting)

    @property
    def captures(self) -> bool:
        """Whether both arms' work is replayed from CUDA graphs.

        A lever that captures is no such case by itself: its own cases replay a graph against the
        eager work, and a replay cannot be captured once more.
        """
        by_lever = any(one.lever == CAPTURES and one.setting != OFF for one in self.spec.stack)
        return by_lever or self.spec.parameters.get("graph") == "on"

    @property
    def demands_bits(self) -> bool:
        """Whether only a byte-exact candidate may ship."""
        return self.spec.policy.demanded is ParityClass.BYTE_EXACT

    @property
    def strict(self) -> bool:
        """Whether every greedy stream must be equal."""
        policy = self.spec.policy
        return policy.strict_tokens or policy.claims is ParityClass.BYTE_EXACT

    def outputs(
        self,
        arm: Literal["ref", "cand"],
        levers: tuple[LeverSetting, ...],
        arguments: Mapping[str, Any],
        *,
        repeat: int = 0,
        parameters: Mapping[str, Scalar] | None = None,
        seed_step: int = 0,
    ) -> Outputs:
        """An untimed parity pass in a process of its own; asked twice, it is answered from memory.

        Streams that an earlier comparison decoded the same way are found again.

        Args:
            arm: whose process it is.
            levers: the levers that are on in it; none means that no lever is imported.
            arguments: what the session shall return.
            repeat: which of several equal processes.
            parameters: the workload's parameters, where they differ from the comparison's.
            seed_step: added to the comparison's seed, for fresh inputs.

        Raises:
            ProcessFailed: the process failed.
        """
        task = self.task(
            "outputs",
            arm,
            levers,
            arguments,
            repeat=repeat,
            parameters=parameters,
            seed_step=seed_step,
        )
        return self.outputs_of(task)

    def outputs_of(self, task: Task) -> Outputs:
        """What a task of :meth:`task` leaves.

        Raises:
            ProcessFailed: the process failed.
        """
        known = self.answered.get(task)
        if known is not None:
            return known
        outputs = self.run(task).outputs
        if outputs is None:
            raise ProcessFailed((failure_at(task, "crashed", "it left no outputs"),))
        self.answered.put(task, outputs)
        return outputs

    def soon(self, tasks: Iterable[Task]) -> None:
        """Have those that are not answered yet at work, each once: they will be asked for."""
        if self._ahead is not None:
            unknown = {one.content_digest(): one for one in tasks if not self.answered.has(one)}
            self._ahead(tuple(unknown.values()))

    def probe_task(self, kind: TaskKind, arguments: Mapping[str, Any]) -> Task:
        """The task of :meth:`probe` with the same arguments."""
        return self.task(kind, "cand", (), arguments)

    def measure_task(self, arm: Literal["ref", "cand"], levers: tuple[LeverSetting, ...]) -> Task:
        """The task of :meth:`measure` with the same arguments."""
        return self.task("measure", arm, levers, {"smoke": True})

    def digest_tasks(
        self, arm: Literal["ref", "cand"], levers: tuple[LeverSetting, ...], *, repeat: int = 0
    ) -> tuple[Task, ...]:
        """The tasks of :meth:`digests` with the same arguments."""
        return tuple(
            self.task("outputs", arm, levers, asked, repeat=repeat)
            for asked in self._digests_asked(repeat)
        )

    def digests(
        self, arm: Literal["ref", "cand"], levers: tuple[LeverSetting, ...], *, repeat: int = 0
    ) -> Outputs:
        """Digests of an arm's outputs, at the largest concurrency where the workload has several.

        A byte-exact claim is held at a concurrency of 1, too, and over many repeats in one process.

        Raises:
            ProcessFailed: a process failed.
        """
        found = [
            self.outputs(arm, levers, asked, repeat=repeat) for asked in self._digests_asked(repeat)
        ]
        if len(found) == 1:
            return found[0]
        return Outputs(
            digests={key: value for one in found for key, value in one.digests.items()},
            nonfinite={key: value for one in found for key, value in one.nonfinite.items()},
            inputs_digest=" ".join(one.inputs_digest for one in found),
            unsteady=tuple(sorted({name for one in found for name in one.unsteady})),
        )

    def _digests_asked(self, repeat: int) -> list[dict[str, Any]]:
        claims_bits = self.spec.policy.claims is ParityClass.BYTE_EXACT
        asked: dict[str, Any] = {"want": "digests"}
        if claims_bits and repeat == 0:
            asked["repeats"] = BYTE_EXACT_REPEATS
        counts = concurrencies(self.spec.parameters)
        if not counts:
            return [asked]
        chosen = sorted({1, max(counts)} if claims_bits else {max(counts)})
        return [{**asked, "concurrency": count} for count in chosen]

    def probe(self, kind: TaskKind, arguments: Mapping[str, Any]) -> CheckResult:
        """A check that runs inside the measured process.

        Raises:
            ProcessFailed: the process failed.
        """
        task = self.probe_task(kind, arguments)
        check = self.run(task).check
        if check is None:
            raise ProcessFailed((failure_at(task, "crashed", "it left no check result"),))
        return check

    def measure(self, arm: Literal["ref", "cand"], levers: tuple[LeverSetting, ...]) -> TaskResult:
        """One short run of the workload, end to end.

        Raises:
            ProcessFailed: the process failed.
        """
        return self.run(self.measure_task(arm, levers))

    def witness_task(
        self,
        arm: Literal["ref", "cand"],
        levers: tuple[LeverSetting, ...],
        parameters: Mapping[str, Scalar],
    ) -> Task:
        """A process that says which path runs at the tested lever's sites with these parameters."""
        return self.task("witness", arm, levers, {}, parameters=parameters)

    def run(self, task: Task) -> TaskResult:
        """Run a task; where a candidate fails, see whether the reference can do the same work.

        Raises:
            ProcessFailed: the process failed, or left something changed.
        """
        result = self._execute(task)
        failure = failure_of(task, result)
        if failure is None:
            return result
        if task.arm != "cand":
            raise ProcessFailed((failure,))
        again = self._reference_of(task)
        raise ProcessFailed(blamed(failure, failure_of(again, self._execute(again))))

    def _reference_of(self, task: Task) -> Task:
        """The reference's form of a candidate's task."""
        swapped = tuple(
            self.alone.ref[0] if one.lever == self.lever.name else one for one in task.levers
        )
        probed = task.kind not in ("outputs", "measure")
        arguments = {**task.arguments, **({"reference_only": True} if probed else {})}
        changes = {"arm": "ref", "levers": swapped, "arguments": arguments}
        return Task.model_validate({**dict(task), **changes})

    def task(
        self,
        kind: TaskKind,
        arm: Literal["ref", "cand"],
        levers: tuple[LeverSetting, ...],
        arguments: Mapping[str, Any],
        *,
        repeat: int = 0,
        parameters: Mapping[str, Scalar] | None = None,
        seed_step: int = 0,
        seed: int | None = None,
    ) -> Task:
        """The task of :meth:`outputs` (or of another kind) with the same arguments."""
        spec = self.spec
        named = levers or kind != "outputs"
        return Task(
            kind=kind,
            arm=arm,
            workload=spec.workload,
            parameters=spec.parameters if parameters is None else parameters,
            device=spec.device,
            seed=(spec.seed if seed is None else seed) + seed_step,
            levers=levers,
            subject=self._setting(spec.cand) if named else None,
            pair=repeat,
            arguments=arguments,
        )
