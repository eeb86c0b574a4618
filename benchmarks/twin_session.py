"""The decode session with the site ``decode.after_step``; the oracle does nothing there."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from torch import Tensor

from benchmarks.twin_decode import AFTER_STEP, REDUNDANT
from experiments.values import Scalar
from experiments.workloads.decode.generation import rate_axis
from experiments.workloads.decode.session import DecodeSession
from levers.base import Site


def spin(seconds: float) -> None:
    """Keep the core busy, as real work would."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def redundant(tokens_B: Tensor, step_s: float) -> tuple[Tensor, str]:
    """The reference: a quarter of the step's time for nothing."""
    spin(REDUNDANT * step_s)
    return tokens_B, f"after={REDUNDANT}"


def nothing(tokens_B: Tensor, step_s: float) -> tuple[Tensor, str]:
    """The oracle, and what a faster twin does."""
    del step_s
    return tokens_B, "after=0"


class TwinSession(DecodeSession):
    """A decode session that does what the site says after each step."""

    def __init__(
        self, parameters: Mapping[str, Scalar], device: str, seed: int, implementation: str
    ) -> None:
        super().__init__(parameters, device, seed, implementation)
        launch = redundant if implementation == "engine" else nothing
        self.sites = {**self.sites, AFTER_STEP: Site(AFTER_STEP, launch)}

    def _step(self, count: int, captured: bool | None = None) -> Callable[[], Tensor]:
        """The decoder's own step, and then the site's work."""
        step = super()._step(count, captured)

        def with_work() -> Tensor:
            start = time.perf_counter()
            tokens_B = step()
            tokens_B, _ = self.sites[AFTER_STEP].launch(tokens_B, time.perf_counter() - start)
            return tokens_B

        return with_work

    def exercise(self) -> None:
        """The decoder's own pass, and one call of the site for each concurrency."""
        super().exercise()
        site = self.sites[AFTER_STEP]
        for count in self._counts:
            _, plan = site.launch(self._engine.tokens_B[:count].clone(), 0.0)
            site.observe(rate_axis(count), plan)


def open_session(
    parameters: Mapping[str, Scalar], device: str, seed: int, implementation: str
) -> TwinSession:
    """Build the decoder with the redundant work."""
    return TwinSession(parameters, device, seed, implementation)
