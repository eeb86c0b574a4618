"""The torch half of the workload: a built training step inside one measured process."""

from __future__ import annotations

import math
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from experiments.tasks import Measurement, Outputs
from experiments.values import LOSS, LOSS_ALLOWANCE, Scalar
from experiments.workloads.base import Session, unpaced
from experiments.workloads.flow import parity
from experiments.workloads.flow.batch import draw_samples, make_batch
from experiments.workloads.flow.ceilings import (
    attention_flop_per_s,
    matmul_flop_per_s,
    peak_flop_per_s,
    stated_peak_flop_per_s,
)
from experiments.workloads.flow.compiled import compile_facts
from experiments.workloads.flow.config import FlowConfig
from experiments.workloads.flow.figures import step_values
from experiments.workloads.flow.inputs import batch_digest, overwritten
from experiments.workloads.flow.memory import largest_batch, step_bytes
from experiments.workloads.flow.names import AXES, PEAK_BYTES, WARMUP_S
from experiments.workloads.flow.precision import PRECISIONS
from experiments.workloads.flow.sites import Sites
from experiments.workloads.flow.step import Step, Timed, adamw, build_model
from experiments.workloads.flow.traffic import optimiser_bytes, row_bytes
from experiments.workloads.team import ALONE, Team
from levers.base import Site
from levers.errors import UnknownName

ENGINE = "engine"
ROOFLINE = "oracle:roofline"

SAME_WEIGHTS, EACH_UPDATE = 0.002, 0.01
"""How far the arms' losses of one step may be apart, as a share: where no optimiser moves the
weights, and for each update where one does. Seen on H200s between lossless levers and the original,
whose gradients are wrong by more than rounding: 1.8e-5 at most, and 1.5 % after five updates of
AdamW (``docs/results``).
"""


class TrainingSession:
    """One model and one batch; every sample runs the same step on them.

    The model is built when it is first needed: a parity pass works on its own, reduced one.
    """

    def __init__(self, config: FlowConfig, device: str, seed: int) -> None:
        self.config, self.device, self.seed = config, device, seed
        precision = PRECISIONS[config.matmul]
        self._slots = Sites(precision, config.attn)
        self.sites: Mapping[str, Site] = self._slots.by_name
        self.pace: Callable[[], None] = unpaced
        self.team: Team = ALONE
        self._step: Step | None = None
        self._peak = 0.0
        self._warmup_s = 0.0

    def step(self) -> Step:
        """The step that is timed, built at the first call."""
        if self._step is None:
            precision = PRECISIONS[self.config.matmul]
            model = build_model(self.config, self._slots, precision, self.seed, self.device)
            samples = draw_samples(self.config, self.team.shard(self.seed))
            adam = self.config.optimizer == "adamw"
            optimizer = adamw(model, team=self.team) if adam else None
            self._step = Step(model, samples, optimizer, self.team)
        return self._step

    def warm_up(self) -> None:
        """Run whole steps (kernels chosen, memory touched); look up or measure the peak rate."""
        start = time.perf_counter()
        for _ in range(self.config.warmup):
            self.step().timed()
        self._warmup_s = time.perf_counter() - start
        self._peak = peak_flop_per_s(self.config, self.device)

    def measure(self) -> Measurement:
        """The median time of ``steps`` steps.

        Raises:
            FloatingPointError: the loss is not finite, so that the times say nothing.
        """
        if not self._peak:
            self.warm_up()
        _reset_peak_memory(self.device)
        runs = [self._paced_step() for _ in range(self.config.steps)]
        losses = [float(one.loss) for one in runs]
        if not all(map(math.isfinite, losses)):
            raise FloatingPointError(f"the loss is not finite: {losses}")
        seconds = self.team.slowest([one.step_s for one in runs])
        values = step_values(self.config, statistics.median(seconds), self._peak)
        values |= {PEAK_BYTES.name: _peak_memory(self.device), WARMUP_S.name: self._warmup_s}
        step = self.step()
        inputs = batch_digest(*step.ran)
        return Measurement(
            values=values,
            raw={
                "step_s": seconds,
                LOSS: tuple(losses),
                **self._host_s(runs),
                "peak_flop_per_s": (self._peak,),
                **self.team.after(self.step()),
            },
            inputs_digest=inputs,
            outputs_count=len(runs),
            facts={**self._facts(), **overwritten(step.samples, inputs)},
        )

    def _paced_step(self) -> Timed:
        self.pace()
        return self.step().timed()

    def _host_s(self, runs: Sequence[Timed]) -> dict[str, tuple[float, ...]]:
        """How long the host took to give a device each step; a CPU works while it is given."""
        if torch.device(self.device).type != "cuda":
            return {}
        return {
            "enqueue_s": tuple(one.enqueue_s for one in runs),
            "enqueue_forward_s": tuple(one.forward_s for one in runs),
        }

    def exercise(self) -> None:
        """One step that the sites watch; every axis is drawn from the same step."""
        self._slots.watch = [axis.name for axis in AXES]
        try:
            self.step().run()
        finally:
            self._slots.watch = ()

    def step_once(self) -> None:
        """One whole step, untimed and unwatched: what a profile looks at."""
        self.step().run()

    def step_work(self) -> Mapping[str, Scalar]:
        """Useful FLOP of the products and attention, least bytes of row kernels and optimiser."""
        flop = self.config.flop
        return {
            "matmul_flop": flop.matmul_flop,
            "attention_flop": flop.attention_flop,
            "row_bytes": row_bytes(self.config),
            "optimiser_bytes": optimiser_bytes(self.config),
        }

    def outputs(self, arguments: Mapping[str, Any]) -> Outputs:
        """The parity pass that ``arguments['want']`` names (see :mod:`.parity`)."""
        return parity.outputs(self.config, self._slots, self.device, self.seed, arguments)

    def _facts(self) -> dict[str, Scalar]:
        batches = self.step().ran
        return {
            "tokens": sum(self.config.lengths),
            "longest_sample": max(self.config.lengths),
            "lengths": " ".join(map(str, self.config.lengths)),
            **self.step_work(),
            "attn": self.config.attn,
            "matmul": self.config.matmul,
            "threads": torch.get_num_threads(),
            "micro_batches": " ".join(str(len(one.layout.lengths)) for one in batches),
            LOSS_ALLOWANCE: self._loss_allowance(),
            **self._memory_facts(),
            **compile_facts(),
        }

    def _loss_allowance(self) -> float:
        moves = self.config.optimizer != "none"
        return EACH_UPDATE * (self.config.warmup + self.config.steps) if moves else SAME_WEIGHTS

    def _memory_facts(self) -> dict[str, Scalar]:
        """The closed form beside the peak that it foretells, and the batch that would fit."""
        if torch.device(self.device).type != "cuda":
            return {}
        device_bytes = torch.cuda.get_device_properties(self.device).total_memory
        return {
            "estimated_bytes": step_bytes(self.config),
            "batch_at_target": largest_batch(self.config, device_bytes),
        }


class RooflineSession:
    """The oracle: the step's matrix products and attention at the device's measured ceilings.

    Everything else of the step is free here, which no implementation reaches; the target asks for a
    share of it.
    """

    def __init__(self, config: FlowConfig, device: str, seed: int) -> None:
        self.config, self.device, self.seed = config, device, seed
        self.sites: Mapping[str, Site] = {}
        self.pace: Callable[[], None] = unpaced

    def warm_up(self) -> None:
        """Bring the device to its working clock with the probes themselves."""
        matmul_flop_per_s(self.config, self.device)
        attention_flop_per_s(self.config, self.device)

    def measure(self) -> Measurement:
        """The values of the axes for a step that is nothing but products and attention."""
        products = matmul_flop_per_s(self.config, self.device)
        attention = attention_flop_per_s(self.config, self.device)
        seconds = self.config.flop.ceiling_s(products, attention)
        peak = stated_peak_flop_per_s(self.config, self.device) or products
        return Measurement(
            values=step_values(self.config, seconds, peak),
            raw={"matmul_flop_per_s": (products,), "attention_flop_per_s": (attention,)},
            inputs_digest=batch_digest(make_batch(self.config, self.seed, self.device)),
            outputs_count=self.config.steps,
            facts={
                "implementation": "roofline",
                "peak_flop_per_s": peak,
                "oracle_mode": f"measured {self.config.matmul} matmul and attention ceilings",
            },
        )

    def exercise(self) -> None:
        """Nothing to witness: a ceiling has no sites."""

    def outputs(self, arguments: Mapping[str, Any]) -> Outputs:
        """A ceiling computes no outputs, and none are asked of it."""
        raise UnknownName("output of the roofline", str(arguments.get("want")), ())


def open_session(
    parameters: Mapping[str, Scalar], device: str, seed: int, implementation: str
) -> Session:
    """Build the session of an implementation: ``engine`` or ``oracle:roofline``.

    Raises:
        UnknownName: no such implementation.
    """
    config = FlowConfig.of(dict(parameters))
    if torch.device(device).type == "cpu":
        torch.set_num_threads(config.threads)
    if implementation == ENGINE:
        return TrainingSession(config, device, seed)
    if implementation == ROOFLINE:
        return RooflineSession(config, device, seed)
    raise UnknownName("implementation of the flow step", implementation, (ENGINE, ROOFLINE))


def _reset_peak_memory(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak_memory(device: str) -> float:
    """Peak allocated bytes on CUDA; on a CPU the largest resident set (Linux states KiB)."""
    if torch.device(device).type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
