"""A training workload of milliseconds that several ranks can run, with faults of single ranks.

Two Linears and AdamW; ``fault`` plants what only a comparison between the ranks can find.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from experiments.tasks import Measurement, Outputs
from experiments.values import Scalar, digest_of
from experiments.workloads.base import DeviceFacts, Needs, Target, unpaced
from experiments.workloads.team import ALONE, Team
from levers.base import Site
from levers.errors import BadParameter
from levers.policy import Axis

if TYPE_CHECKING:
    from torch import Tensor

SITE = "ranked.output"
TOK_S, STEP_MS, PEAK = "train/tok_s", "train/step_ms", "memory/peak_bytes"
TOKENS = 16
WIDTH = 8
DEFAULTS: Mapping[str, Scalar] = {"steps": 3, "threads": 1, "optimizer": "none", "fault": "none"}
FAULTS = ("none", "weights", "start", "shard", "plan", "autotune")


class RankedWorkload:
    name = "ranked"
    summary = "two Linears, for tests of several ranks"
    opener = "tests.support.ranked_workload:open_session"
    oracles = ("alone",)
    checks = ("smoke",)
    several_ranks = True

    def resolve(self, requested: Mapping[str, str], device: DeviceFacts) -> Mapping[str, Scalar]:
        unknown = set(requested) - set(DEFAULTS)
        if unknown:
            raise BadParameter(f"ranked has no parameter {sorted(unknown)}")
        return {**DEFAULTS, **{k: type(DEFAULTS[k])(v) for k, v in requested.items()}}

    def axes(self, parameters: Mapping[str, Scalar]) -> tuple[Axis, ...]:
        return (
            Axis(TOK_S, "tok/s", higher_is_better=True),
            Axis(STEP_MS, "ms", higher_is_better=False),
            Axis(PEAK, "B", higher_is_better=False),
        )

    def targets(self, parameters: Mapping[str, Scalar], oracle: str | None) -> tuple[Target, ...]:
        return ()

    def sites(self, parameters: Mapping[str, Scalar]) -> tuple[str, ...]:
        return (SITE,)

    def needs(self, parameters: Mapping[str, Scalar], device: DeviceFacts) -> Needs:
        return Needs(0, 300_000_000, 10_000_000, 0.2)

    def oracle_mode(self, parameters: Mapping[str, Scalar], oracle: str) -> str:
        return ""

    def impossible(
        self, parameters: Mapping[str, Scalar], device: DeviceFacts
    ) -> Mapping[str, float]:
        return {TOK_S: 1e9}


RANKED = RankedWorkload()


def plain(out: Tensor) -> tuple[Tensor, str]:
    """The reference's launch and its plan."""
    return out, "plan=plain"


@dataclass
class TinyStep:
    model: Any
    x: Tensor
    launch: Callable[..., Any]
    optimizer: Any
    team: Team
    forward: Callable[..., Any] = field(init=False)

    def __post_init__(self) -> None:
        self.forward = self.team.wrap(self.model)

    def run(self) -> str:
        self.model.zero_grad(set_to_none=True)
        out, plan = self.launch(self.forward(self.x))
        out.square().mean().backward()
        if self.optimizer is not None:
            self.optimizer.step()
        return str(plan)

    def timed(self) -> float:
        self.team.start()
        start = time.perf_counter()
        self.run()
        return time.perf_counter() - start


@dataclass
class RankedSession:
    parameters: Mapping[str, Scalar]
    seed: int
    sites: Mapping[str, Site]
    pace: Callable[[], None] = unpaced
    team: Team = ALONE
    _step: TinyStep | None = None

    @property
    def fault(self) -> str:
        return str(self.parameters["fault"]) if self.team.rank == 1 else "none"

    def step(self) -> TinyStep:
        if self._step is None:
            import torch

            torch.manual_seed(self.seed + (self.fault == "start"))
            model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 1))
            x = self.inputs()
            adam = self.parameters["optimizer"] == "adamw"
            optimizer = (
                self.team.optimizer(torch.optim.AdamW, model.parameters(), lr=1e-2)
                if adam
                else None
            )
            self._step = TinyStep(model, x, self._launch, optimizer, self.team)
        return self._step

    def inputs(self) -> Tensor:
        import torch

        shard = self.seed if self.parameters["fault"] == "shard" else self.team.shard(self.seed)
        return torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(shard))

    def _launch(self, out: Tensor) -> tuple[Tensor, str]:
        found: tuple[Tensor, str] = self.sites[SITE].launch(out)
        return found

    def warm_up(self) -> None:
        self.step().timed()

    def measure(self) -> Measurement:
        step = self.step()
        own = []
        for _ in range(int(self.parameters["steps"] or 1)):
            self.pace()
            own.append(step.timed())
        if self.fault == "weights":
            step.model[1].bias.data += 1.0
        times = self.team.slowest(own)
        median = sorted(times)[len(times) // 2]
        peak = 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return Measurement(
            values={TOK_S: TOKENS / median, STEP_MS: 1e3 * median, PEAK: peak},
            raw={"step_s": times, **self.team.after(step)},
            inputs_digest=digest_of(step.x.numpy().tobytes()),
            outputs_count=len(times),
            facts={"autotune.kernel": "other"} if self.fault == "autotune" else {},
        )

    def exercise(self) -> None:
        plan = self.step().run()
        self.sites[SITE].observe(TOK_S, "plan=other" if self.fault == "plan" else plan)

    def outputs(self, arguments: Mapping[str, Any]) -> Outputs:
        out, _ = self._launch(self.inputs())
        return Outputs(digests={"out": digest_of(out.numpy().tobytes())}, inputs_digest="x")


@dataclass
class AloneSession:
    """An oracle: it takes no part of the batch."""

    sites: Mapping[str, Site] = field(default_factory=dict)
    pace: Callable[[], None] = unpaced

    def warm_up(self) -> None:
        """Nothing to compile."""

    def measure(self) -> Measurement:
        values = {TOK_S: 1e3, STEP_MS: 1.0, PEAK: 1.0}
        return Measurement(values=values, inputs_digest="oracle", outputs_count=1)

    def exercise(self) -> None:
        """Nothing to witness."""

    def outputs(self, arguments: Mapping[str, Any]) -> Outputs:
        return Outputs()


def open_session(
    parameters: Mapping[str, Scalar], device: str, seed: int, implementation: str
) -> RankedSession | AloneSession:
    if implementation != "engine":
        return AloneSession()
    return RankedSession(parameters, seed, {SITE: Site(SITE, plain)})
