"""Where a benchmark of products writes its lines, and how it draws operands and times calls."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from levers.errors import LevergateError
from levers.kernels.cublaslt import CANDIDATES
from levers.kernels.cublaslt_tuning import interleaved_us

Call = Callable[[], object]


@dataclass
class Report:
    """The lines so far, on the screen and on disk."""

    path: Path | None
    head: Mapping[str, object]
    lines: list[dict[str, object]] = field(default_factory=list)

    def add(self, part: str, case: str, what: str, **values: object) -> None:
        """One line; floats are shown with four figures."""
        self.lines.append({"part": part, "case": case, "what": what, **values})
        shown = "  ".join(
            f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in values.items()
        )
        print(f"{part:7} {case:28} {what:34} {shown}", flush=True)
        if self.path is not None:
            self.path.write_text(json.dumps({**self.head, "lines": self.lines}, indent=1) + "\n")

    def attempt(self, part: str, case: str, what: str, work: Call) -> None:
        """Do what adds lines; a failure is a line too."""
        try:
            work()
        except (LevergateError, RuntimeError, TypeError, ValueError) as error:
            text = str(error).splitlines()[0] if str(error) else ""
            self.add(part, case, what, failed=f"{type(error).__name__}: {text}")


@dataclass(frozen=True)
class Bench:
    """Where it runs, how a call is timed there, and how many algorithms of each product are."""

    device: str
    report: Report
    clock: Callable[[Call], float]
    proposals: int = CANDIDATES

    def drawn(self, *shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Standard normal values, the weights' scale left to the caller."""
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(*shape, generator=generator, device=self.device).to(dtype)

    def compare(
        self, part: str, case: str, arms: Mapping[str, Call], flop: float, base: str
    ) -> None:
        """Time the arms that run in turn, and give each a line with its ratio to the base."""
        ready: dict[str, Call] = {}
        for name, call in arms.items():

            def once(name: str = name, call: Call = call) -> None:
                call()
                ready[name] = call

            self.report.attempt(part, case, name, once)
        times = dict(zip(ready, interleaved_us(list(ready.values()), self.clock), strict=True))
        for name, time_us in times.items():
            values = {"us": time_us, "tflop_s": flop / time_us / 1e6}
            if base in times:
                values["gain"] = times[base] / time_us
            self.report.add(part, case, name, **values)


def host_us(call: Call) -> float:
    """Microseconds of a call on the host, where there is no device."""
    start = time.perf_counter()
    call()
    return 1e6 * (time.perf_counter() - start)
