"""A machine on which campaigns run without processes: real requests, drawn samples, real rules.

What a lever brings is planted (``gains``, log ratios by ``lever=setting``); records are resolved,
decided and stored as those of a live run.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from experiments import environment, prepare, run_setup, spool_reader, token_models
from experiments.home import Home, make_folder
from experiments.parity_records import ParityReport
from experiments.profiling_records import GROUPS, GroupTime, Profile
from experiments.records import Sample
from experiments.registry.store import Registry
from experiments.replay import decide_again
from experiments.requests import AbRequest, Listener
from experiments.run_record import RunRecord
from experiments.spec import LeverSetting
from experiments.spool import Spool
from experiments.stack import prepare as stack_prepare
from experiments.stack import run as stack_run
from experiments.stack import store as stack_store
from experiments.stack.records import RowEvidence, StackRecord
from experiments.stack.requests import StackRequest
from experiments.stack.stats import analysed
from experiments.witness_records import Witness
from tests.support.evidence_factory import parity
from tests.support.evidence_factory import sample as one_sample
from tests.support.stub_workload import RATE, STEP

ORACLE = math.log(1 / 0.95)
"""Log rate of the oracle above the reference's, as on the stub."""


@dataclass
class Machine:
    """Takes the place of the pipelines of ``ab`` and ``stack``.

    Attributes:
        gains: log gain of each ``lever=setting`` alone; ``together`` where it is another in a set.
        asked: the requests that came.
        kill: raises it after so many A/Bs, with the run left on disk.
        noise: of the log of one process.
        package: the distribution that the oracle's samples name, with its version.
    """

    home: Home
    gains: dict[str, float]
    together: dict[str, float] = field(default_factory=dict)
    asked: list[AbRequest | StackRequest] = field(default_factory=list)
    kill: set[str] = field(default_factory=set)
    noise: float = 0.002
    package: str = ""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    def use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("experiments.pipeline.ab", self.ab)
        monkeypatch.setattr("experiments.stack.pipeline.stack", self.stack)

    # --- ab -------------------------------------------------------------------------------------

    def ab(self, request: AbRequest, listener: Listener, *, mirror: bool = True) -> RunRecord:
        """Decide one A/B; a lever in ``kill`` is cut once after its head is on disk."""
        self.asked.append(request)
        with Registry.open(self.home.registry) as registry:
            if request.resume is not None:
                record = spool_reader.load(self.home.runs, request.resume).record
            else:
                record = self._head(request, registry, listener)
            if request.lever in self.kill:
                self.kill.remove(request.lever)
                Spool.create(self.home.runs, record).close()
                raise KeyboardInterrupt
            drawn = record.model_copy(update=self._evidence(record))
            found = drawn.model_copy(update={"status": "decided", "decision": decide_again(drawn)})
            registry.save(RunRecord.model_validate(found.model_dump()))
        return found

    def _head(self, request: AbRequest, registry: Registry, listener: Listener) -> RunRecord:
        device = environment.find_device("cpu")
        alone = prepare.compare(request, device)
        stack = run_setup.stack_for(registry, alone, listener)
        comparison = prepare.compare(request, device, stack)
        comparison = token_models.added(comparison, request.tokens_on)
        head = run_setup.head_of(comparison, environment.describe(device, {}, {}, {}))
        self.now += timedelta(seconds=1)
        return head.model_copy(update={"created_at": self.now.isoformat()})

    def _evidence(self, record: RunRecord) -> dict[str, object]:
        spec = record.spec
        comparison = prepare.again(spec, environment.find_device("cpu"))
        gain = self.gain([LeverSetting(lever=spec.lever, setting=spec.cand)])
        logs = {"cand": gain, "oracle": ORACLE}
        rng = np.random.default_rng(zlib.crc32(spec.lever.encode()))
        samples = tuple(
            self._sample(run.pair, run.arm, logs.get(run.arm, 0.0), rng, run.position)
            for step in comparison.plan.steps
            for run in step.runs
        )
        return {
            "samples": samples,
            "parity": parity(spec.policy.claims),
            "witnesses": (
                Witness(arm="ref", plans={RATE: "plain"}, launches={"s": 1}),
                Witness(arm="cand", plans={RATE: spec.lever}, launches={"s": 1}),
            ),
        }

    def gain(self, levers: Sequence[LeverSetting]) -> float:
        key = " + ".join(sorted(map(str, levers)))
        if key in self.together:
            return self.together[key]
        return math.fsum(self.gains[str(one)] for one in levers)

    def _sample(
        self, pair: int, arm: str, log: float, rng: np.random.Generator, position: int = 0
    ) -> Sample:
        rate = 1000.0 * math.exp(log + float(rng.normal(0, self.noise)))
        values = {RATE: rate, STEP: 1e6 / rate}
        found = one_sample(pair, arm, values, position=position)  # type: ignore[arg-type]
        facts: dict[str, object] = {"decode/floor_ratio/c1": 2.5}
        facts |= {"oracle_package": self.package} if arm == "oracle" else {}
        return found.model_copy(update={"telemetry": facts})

    # --- stack ----------------------------------------------------------------------------------

    def stack(self, request: StackRequest, listener: Listener) -> StackRecord:
        """Measure a binding run; ``stack`` in ``kill`` cuts it once with its head on disk."""
        self.asked.append(request)
        if request.resume is not None:
            folder = stack_store.find(self.home, request.resume)
            head = stack_store.load(folder)
        else:
            with Registry.open(self.home.registry) as registry:
                device = environment.find_device("cpu")
                stack = stack_prepare.resolved(request, device, registry, listener)
            stack = stack_run.with_tokens(stack, request.tokens_on)
            self.now += timedelta(seconds=1)
            head = StackRecord(
                stack_id=f"{self.now:%Y%m%dT%H%M%S}-{len(self.asked):06x}",
                status="running",
                created_at=self.now.isoformat(),
                spec=stack.spec,
                axes=stack.workload.axes(stack.spec.parameters),
                environment=environment.describe(device, {}, {}, {}),
            )
            folder = make_folder(self.home.root / stack_store.FOLDER / head.stack_id)
            stack_store.begin(folder, head)
        if "stack" in self.kill:
            self.kill.remove("stack")
            raise KeyboardInterrupt
        record = self._measured(head)
        stack_store.save(folder, record)
        return record

    def _measured(self, head: StackRecord) -> StackRecord:
        rng = np.random.default_rng(3)
        evidence = []
        for row in head.spec.rows:
            log = ORACLE if row.oracle else self.gain(row.levers)
            arms = {"ref": 0.0, row.arm: log} if row.arm != "ref" else {}
            report: ParityReport | None = parity(head.spec.claims) if row.levers else None
            samples = tuple(
                self._sample(block, arm, value, rng)
                for block in range(head.spec.blocks)
                for arm, value in arms.items()
            )
            plans = {f"{one.lever}: {RATE}": one.setting for one in row.levers}
            evidence.append(RowEvidence(row=row, parity=report, plans=plans, samples=samples))
        found = head.model_copy(update={"evidence": tuple(evidence), "profile": PROFILE})
        return found.model_copy(update={"status": "measured", "analysis": analysed(found)})


PROFILE = Profile(
    device_kind="test cpu",
    levers=(),
    steps=3,
    step_ms=float(len(GROUPS)),
    plain_step_ms=8.0,
    profiled_step_ms=8.0,
    level="kernels",
    unit="step",
    groups=tuple(
        GroupTime(group=group, ms=1.0, launches=2, flop=4e9 if group == "gemm" else None)
        for group in GROUPS
    ),
    ceilings={"gemm_flop_per_s": 8e12, "copy_bytes_per_s": 4e12},
)


def home_at(root: Path) -> Home:
    return Home(root, root.parent / "locks").make()
