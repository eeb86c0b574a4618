"""A workload of milliseconds for tests of the runner: one site, a real and a virtual clock.

On the virtual clock a launch costs what its callable says (``cost``, 1 by default) with Gaussian
noise, so that planted speeds are exact.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments.tasks import Measurement, Outputs
from experiments.values import Scalar, digest_of
from experiments.workloads.base import DeviceFacts, Needs, Target, unpaced
from levers.base import Site
from levers.errors import BadParameter
from levers.policy import Axis

if TYPE_CHECKING:
    from torch import Tensor

SITE = "stub.product"
RATE, STEP = "stub/items_s", "stub/step_ms"
DEFAULTS: Mapping[str, Scalar] = {
    "size": 64,
    "steps": 8,
    "threads": 1,
    "clock": "wall",
    "noise": 0.005,
}


class StubWorkload:
    name = "stub"
    summary = "a small matrix product, for tests"
    opener = "tests.support.stub_workload:open_session"
    oracles = ("plain",)
    checks = ("op", "determinism", "smoke", "rollback")

    def resolve(self, requested: Mapping[str, str], device: DeviceFacts) -> Mapping[str, Scalar]:
        unknown = set(requested) - set(DEFAULTS)
        if unknown:
            raise BadParameter(f"stub has no parameter {sorted(unknown)}")
        typed = {name: type(DEFAULTS[name])(value) for name, value in requested.items()}
        return {**DEFAULTS, **typed}

    def axes(self, parameters: Mapping[str, Scalar]) -> tuple[Axis, ...]:
        return (Axis(RATE, "items/s", True), Axis(STEP, "ms", False))

    def targets(self, parameters: Mapping[str, Scalar], oracle: str | None) -> tuple[Target, ...]:
        return (Target(RATE, "oracle", 1.0),) if oracle else ()

    def sites(self, parameters: Mapping[str, Scalar]) -> tuple[str, ...]:
        return (SITE,)

    def needs(self, parameters: Mapping[str, Scalar], device: DeviceFacts) -> Needs:
        return Needs(0, 300_000_000, 10_000_000, 0.1)

    def oracle_mode(self, parameters: Mapping[str, Scalar], oracle: str) -> str:
        return "eager"

    def impossible(
        self, parameters: Mapping[str, Scalar], device: DeviceFacts
    ) -> Mapping[str, float]:
        return {}


STUB = StubWorkload()


def product(x_NN: Tensor, y_NN: Tensor) -> tuple[Tensor, str]:
    """The reference's launch: the product, and the plan that made it."""
    return x_NN @ y_NN, "kernel=product"


@dataclass
class StubSession:
    parameters: Mapping[str, Scalar]
    sites: Mapping[str, Site]
    inputs: tuple[Tensor, Tensor]
    slowdown: float
    pace: Callable[[], None] = unpaced

    def warm_up(self) -> None:
        self._step()

    def measure(self) -> Measurement:
        steps = int(self.parameters["steps"] or 1)
        times_s = [self._timed() for _ in range(steps)]
        median_s = sorted(times_s)[steps // 2]
        return Measurement(
            values={RATE: 1 / median_s, STEP: median_s * 1e3},
            raw={"step_s": tuple(times_s)},
            inputs_digest=digest_of(self.inputs[0].numpy().tobytes()),
            outputs_count=steps,
            facts={"oracle_mode": "eager"},
        )

    def exercise(self) -> None:
        self._step(observe=True)

    def outputs(self, arguments: Mapping[str, Any]) -> Outputs:
        result, _ = self._launch()(*self.inputs)
        return Outputs(
            digests={"product": digest_of(result.numpy().tobytes())},
            nonfinite={"product": int((~result.isfinite()).sum())},
            inputs_digest=digest_of(self.inputs[0].numpy().tobytes()),
        )

    def _launch(self) -> Callable[..., Any]:
        return self.sites[SITE].launch

    def _step(self, observe: bool = False) -> None:
        _, plan = self._launch()(*self.inputs)
        if observe:
            self.sites[SITE].observe(RATE, plan)
            self.sites[SITE].observe(STEP, plan)

    def _timed(self) -> float:
        start = time.perf_counter()
        self._step()
        if self.parameters["clock"] != "virtual":
            return (time.perf_counter() - start) * self.slowdown
        cost = float(getattr(self._launch(), "cost", 1.0)) * self.slowdown
        return cost * 1e-3 * random.SystemRandom().gauss(1.0, float(self.parameters["noise"] or 0))


def open_session(
    parameters: Mapping[str, Scalar], device: str, seed: int, implementation: str
) -> StubSession:
    import torch

    generator = torch.Generator().manual_seed(seed)
    size = int(parameters["size"] or 1)
    x_NN = torch.randn(size, size, generator=generator)
    y_NN = torch.randn(size, size, generator=generator)
    slowdown = 0.95 if implementation == "oracle:plain" else 1.0
    return StubSession(parameters, {SITE: Site(SITE, product)}, (x_NN, y_NN), slowdown)
