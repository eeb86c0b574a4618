"""Where a benchmark of products writes its lines, and how it draws operands and times calls."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

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
        except Exception as error:  # noqa: BLE001 - foreign code's fault must not cost the others
            self.failed(part, case, what, error)

    def failed(self, part: str, case: str, what: str, error: Exception) -> None:
        """The line of what failed: why, in its first line."""
        text = str(error).splitlines()[0] if str(error) else ""
        self.add(part, case, what, failed=f"{type(error).__name__}: {text}")

    def exit_code(self, parts: Sequence[str]) -> int:
        """0 where each part has a line that did not fail; else 1, and those are named."""
        good = {line["part"] for line in self.lines if "failed" not in line}
        bad = [part for part in parts if part not in good]
        for part in bad:
            print(f"{part}: every line failed", file=sys.stderr)
        return 1 if bad else 0


class ArmFailed(Exception):
    """An arm that ran once failed when it was timed."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(name)
        self.name, self.error = name, error


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
        self.report.attempt(part, case, "", partial(self._time, part, case, ready, flop, base))

    def _time(
        self, part: str, case: str, ready: Mapping[str, Call], flop: float, base: str
    ) -> None:
        times = self._times(part, case, ready)
        for name, time_us in times.items():
            values = {"us": time_us, "tflop_s": flop / time_us / 1e6}
            if base in times:
                values["gain"] = times[base] / time_us
            self.report.add(part, case, name, **values)

    def _times(self, part: str, case: str, ready: Mapping[str, Call]) -> dict[str, float]:
        """Of one that fails only now its line; the others are timed again without it."""
        left = {name: _named(name, call) for name, call in ready.items()}
        while left:
            try:
                found = interleaved_us(list(left.values()), self.clock)
                return dict(zip(left, found, strict=True))
            except ArmFailed as arm:
                self.report.failed(part, case, arm.name, arm.error)
                del left[arm.name]
        return {}


def _named(name: str, call: Call) -> Callable[[], None]:
    """The call, which says whose it was when it fails."""

    def once() -> None:
        try:
            call()
        except Exception as error:
            raise ArmFailed(name, error) from error

    return once


def host_us(call: Call) -> float:
    """Microseconds of a call on the host, where there is no device."""
    start = time.perf_counter()
    call()
    return 1e6 * (time.perf_counter() - start)


def device(text: str) -> str:
    """A device's name that is typed: one on which a benchmark can run here.

    Raises:
        argparse.ArgumentTypeError: it is none, or this machine has none such.
    """
    try:
        found = torch.device(text)
    except RuntimeError:
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"{text!r} is no device: give cpu, cuda or cuda:N")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found.type == "cuda" and (found.index or 0) >= count:
        raise argparse.ArgumentTypeError(f"there is no {text}: this torch sees {count} GPUs")
    return text


def at_least_one(text: str) -> int:
    """A number that is typed, of what must be there.

    Raises:
        argparse.ArgumentTypeError: it is less than 1, or no number.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"give a whole number of at least 1, not {text!r}")
    return int(text)


def file_in_out(parser: argparse.ArgumentParser, name: str) -> Path | None:
    """A file in the folder ``$OUT``, which is made where it is missing; None without ``$OUT``."""
    folder = os.environ.get("OUT")
    if not folder:
        return None
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"the folder OUT={folder} cannot be made: {error.strerror}")
    return Path(folder) / name
