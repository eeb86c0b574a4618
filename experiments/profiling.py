"""The profile of one set of levers, in the measured process: untimed steps under torch's profiler.

Nothing that a table shows is measured here. A session that has ``step_once`` runs whole steps of
its work; any other runs its untimed pass over the axes (``exercise``). On CUDA each kernel and copy
counts with its interval on the device, and the host's gap is the wall-clock in which none ran; on a
CPU each operator counts with its own time, and the gap is dispatch, views, the autograd engine and
Python.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

from experiments.profiling_records import (
    ENQUEUE_MS,
    GROUPS,
    Gap,
    Group,
    GroupTime,
    KernelTime,
    Profile,
)
from experiments.roofline.groups import of_kernel, of_operator, union_ms
from experiments.tasks import Task
from experiments.values import Scalar
from experiments.workloads.base import Session

STEPS = 3
"""Profiled steps; their kernels repeat, and more only make the trace longer."""

PLAIN_STEPS = 3
"""Steps without the profiler, to show how much it slows the host."""

MOST_KERNELS = 40
"""Kernels that are kept by name; the groups hold the time of all."""

MOST_GAPS = 12
"""Pairs of kernels between which the device waited longest."""

NAME_CHARACTERS = 160

COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 27}
"""Size of the copy probe: far above the last cache of either device."""

MATMUL_SIZE = {"cuda": 8192, "cpu": 1024}
PROBES = 5


@runtime_checkable
class Stepping(Protocol):
    """A session whose work is a step that can be run by itself."""

    def step_once(self) -> None:
        """One whole step of the timed work, untimed."""


@runtime_checkable
class Counting(Protocol):
    """A session that can say how much work such a step is, without timing anything."""

    def step_work(self) -> Mapping[str, Scalar]:
        """Useful FLOP and least bytes of one :meth:`Stepping.step_once`, by the name of a fact."""


@dataclass(slots=True)
class Times:
    """Time by name while a profile is read, in ms over all steps."""

    group: Callable[[str], Group]
    ms: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    launches: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    intervals: list[tuple[float, float]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def add(self, name: str, ms: float) -> None:
        """One kernel or operator."""
        self.ms[name] += ms
        self.launches[name] += 1

    @property
    def busy_ms(self) -> float:
        """The wall-clock in which something of a group other than the host's gap ran."""
        return union_ms(self.intervals)


def profile(task: Task, session: Session) -> Profile:
    """Profile a few steps of a session that is warm.

    Args:
        task: its device and levers; ``arguments`` may name ``steps``.
        session: opened, with the levers on, and warmed up.
    """
    on_cuda = task.device.startswith("cuda")
    stepping = isinstance(session, Stepping)
    once = session.step_once if isinstance(session, Stepping) else session.exercise
    work = session.step_work() if stepping and isinstance(session, Counting) else {}
    steps = int(task.arguments.get("steps", STEPS))
    plain_ms = _wall_ms(once, PLAIN_STEPS, on_cuda)
    host = {ENQUEUE_MS: _enqueue_ms(once, PLAIN_STEPS)} if on_cuda else {}
    activities = [ProfilerActivity.CUDA] if on_cuda else []
    with torch_profile(activities=[ProfilerActivity.CPU, *activities], acc_events=True) as found:
        wall_ms = _wall_ms(once, steps, on_cuda)
    times = read_kernels(found.events()) if on_cuda else read_operators(found.events())
    return summary(
        times,
        steps,
        plain_ms if on_cuda else wall_ms,
        profiled_step_ms=wall_ms,
        device_kind=torch.cuda.get_device_name(0) if on_cuda else "CPU",
        levers=tuple(map(str, task.levers)),
        plain_step_ms=plain_ms,
        level="kernels" if on_cuda else "operators",
        unit="step" if stepping else "pass",
        ceilings=ceilings("cuda" if on_cuda else "cpu"),
        facts={**work, **host, "threads": torch.get_num_threads(), "torch": torch.__version__},
    )


def _enqueue_ms(work: Callable[[], object], repeats: int) -> float:
    """Median time that the host takes to give an idle device one run."""
    spent_ms = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        spent_ms.append((time.perf_counter() - start) * 1e3)
    torch.cuda.synchronize()
    return statistics.median(spent_ms)


def summary(times: Times, steps: int, wall_ms: float, **said: Any) -> Profile:
    """The profile from what was read.

    Args:
        times: over all steps.
        steps: how many there were.
        wall_ms: mean wall-clock of a step, of which the groups are shares.
        said: what the profile says beside its times.
    """
    rows = [
        KernelTime(
            name=name[:NAME_CHARACTERS],
            group=times.group(name),
            launches=times.launches[name] / steps,
            ms=ms / steps,
        )
        for name, ms in sorted(times.ms.items(), key=lambda item: -item[1])
    ]
    busy_ms = times.busy_ms / steps
    groups = tuple(_group(group, rows, max(0.0, wall_ms - busy_ms)) for group in GROUPS)
    worked = sum(one.ms for one in groups if one.group != "host gap")
    return Profile(
        steps=steps,
        step_ms=wall_ms,
        groups=groups,
        overlap_ms=max(0.0, worked - busy_ms),
        kernels=tuple(rows[:MOST_KERNELS]),
        others=max(0, len(rows) - MOST_KERNELS),
        **_waits(times, steps),
        **said,
    )


def _waits(times: Times, steps: int) -> dict[str, Any]:
    """Where the device waited between two kernels, and for how long in all."""
    if not times.names:
        return {}
    ms: dict[tuple[str, str], float] = defaultdict(float)
    count: dict[tuple[str, str], int] = defaultdict(int)
    runs = sorted(zip(times.intervals, times.names, strict=True))
    (_, end), last = runs[0]
    for (start, stop), name in runs[1:]:
        if start > end:
            ms[last, name] += (start - end) / 1e3
            count[last, name] += 1
        if stop > end:
            end, last = stop, name
    longest = sorted(ms, key=lambda pair: -ms[pair])[:MOST_GAPS]
    gaps = tuple(
        Gap(
            after=after[:NAME_CHARACTERS],
            before=before[:NAME_CHARACTERS],
            times=count[after, before] / steps,
            ms=ms[after, before] / steps,
        )
        for after, before in longest
    )
    return {"gaps": gaps, "idle_ms": sum(ms.values()) / steps}


def _group(group: Group, rows: Sequence[KernelTime], gap_ms: float) -> GroupTime:
    mine = [row for row in rows if row.group == group]
    ms = gap_ms if group == "host gap" else sum(row.ms for row in mine)
    return GroupTime(group=group, ms=ms, launches=sum(row.launches for row in mine))


def read_kernels(events: Iterable[FunctionEvent]) -> Times:
    """Kernels, copies and memory sets with their intervals on the device."""
    times = Times(of_kernel)
    for event in events:
        if event.device_type != DeviceType.CUDA or event.is_user_annotation:
            continue
        start, end = event.time_range.start, event.time_range.end
        times.add(event.name, (end - start) / 1e3)
        times.intervals.append((start, end))
        times.names.append(event.name)
    return times


def read_operators(events: Iterable[FunctionEvent]) -> Times:
    """Operators with their own time; what only dispatches leaves no busy interval.

    Own times never overlap inside a thread, so they are laid end to end: the union is their sum.
    """
    times, at = Times(of_operator), 0.0
    for event in events:
        if event.device_type != DeviceType.CPU or event.is_user_annotation:
            continue
        own_us = event.self_cpu_time_total
        times.add(event.name, own_us / 1e3)
        if of_operator(event.name) != "host gap":
            times.intervals.append((at, at + own_us))
            at += own_us
    return times


def ceilings(device: Literal["cuda", "cpu"]) -> Mapping[str, float]:
    """The measured rates of a large product and a large copy, in FLOP/s and B/s (read and write).

    The product is in bf16 on CUDA and in fp32 on a CPU, which multiplies no faster in bf16.
    """
    n, dtype = MATMUL_SIZE[device], torch.bfloat16 if device == "cuda" else torch.float32
    a_NN, b_NN = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    source = torch.empty(COPY_BYTES[device], dtype=torch.uint8, device=device).fill_(1)
    target = torch.empty_like(source)
    on_cuda = device == "cuda"
    product_ms = _fastest_ms(lambda: torch.mm(a_NN, b_NN), on_cuda)
    copy_ms = _fastest_ms(lambda: target.copy_(source), on_cuda)
    return {
        "gemm_flop_per_s": 2.0 * n**3 / (product_ms / 1e3),
        "copy_bytes_per_s": 2.0 * COPY_BYTES[device] / (copy_ms / 1e3),
    }


def _fastest_ms(work: Callable[[], object], on_cuda: bool) -> float:
    """The fastest of a few runs: a ceiling is what the device can do."""
    work()
    return min(_wall_ms(work, 1, on_cuda) for _ in range(PROBES))


def _wall_ms(work: Callable[[], object], repeats: int, on_cuda: bool) -> float:
    """Mean wall-clock of some runs, from an idle device to an idle device."""
    if on_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    if on_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats * 1e3
