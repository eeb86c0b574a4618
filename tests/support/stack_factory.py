"""Whole stack records with drawn samples: what a lever brings is planted, to be found again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from experiments.parity_records import CheckResult, ParityReport
from experiments.records import ArmFailure, LostPair, Sample
from experiments.spec import LeverSetting
from experiments.stack.plan import Rows, Schedule, leave_one_out, waterfall
from experiments.stack.records import Overlap, RowEvidence, StackRecord, StackSpec
from levers.policy import Axis, ParityClass
from tests.support.evidence_factory import sample as one_sample
from tests.support.run_factory import ENVIRONMENT

RATE = Axis("train/tok_s", "tok/s", True)
STEP = Axis("train/step_ms", "ms", False)
LEVERS = tuple(LeverSetting(lever=name, setting="on") for name in ("a", "b", "c"))

Gain = Callable[[Sequence[str]], float]
"""Log gain of a set of levers, by their names."""


def adding(**gains: float) -> Gain:
    """Levers that know nothing of each other."""
    return lambda names: math.fsum(gains[name] for name in names)


def spec(blocks: int = 6, *, interleaved: bool = False, pair: bool = True) -> StackSpec:
    rows = Rows()
    waterfall(LEVERS, rows)
    left_out = leave_one_out(LEVERS, rows)
    crossed = tuple(rows.add(part, "pair") for part in ([], LEVERS[:1], LEVERS[1:2], LEVERS[:2]))
    overlaps = (Overlap(levers=("a", "b"), why="both change x", rows=crossed),) if pair else ()
    return StackSpec(
        workload="flow",
        parameters={"bs": 8},
        device="cpu",
        seed=3,
        levers=LEVERS,
        rows=rows.all(),
        left_out=left_out,
        overlaps=overlaps,
        blocks=blocks,
        interleaved=interleaved,
        axis=RATE.name,
        claims=ParityClass.LOSSLESS,
        demands=ParityClass.LOSSLESS,
        levers_digest="d",
    )


def passed() -> ParityReport:
    check = CheckResult(
        name="stack", status="passed", passed=2, total=2, strongest=ParityClass.LOSSLESS
    )
    return ParityReport(checks=(check,), claimed=ParityClass.LOSSLESS)


def record(
    of: StackSpec,
    gain: Gain,
    *,
    noise: float = 0.004,
    drift: float = 0.0,
    failed: Sequence[int] = (),
    lost: Sequence[int] = (),
    blocks: int | None = None,
    seed: int = 11,
) -> StackRecord:
    """A running record: log gains, noise of each process, a drift over the places of a block."""
    rng = np.random.default_rng(seed)
    evidence = []
    schedule = Schedule(of.seed, of.blocks, len(of.rows))
    for row in of.rows:
        names = [one.lever for one in row.levers]
        samples = []
        for block in range(of.blocks if blocks is None else blocks):
            slow = drift * schedule.order(block).index(row.index)
            samples += _samples(of, names, block, gain(names), slow, noise, rng)
        broken = ArmFailure(arm="cand", kind="out-of-memory", stage="warm-up", message="no room")
        evidence.append(
            RowEvidence(
                row=row,
                parity=passed() if names else None,
                plans={f"{name.lever}: {RATE.name}": _plan(name.lever, names) for name in LEVERS},
                samples=tuple(samples),
                lost=tuple(LostPair(pair=n, arm="cand", cause="steal") for n in lost if names),
                failures=(broken,) if row.index in failed else (),
            )
        )
    return StackRecord(
        stack_id="20261129T160000-abcdef",
        status="running",
        created_at="2026-11-29T16:00:00+00:00",
        spec=of,
        axes=(RATE, STEP),
        environment=ENVIRONMENT,
        evidence=tuple(evidence),
        stopped="all planned blocks are measured",
    )


def _plan(lever: str, names: Sequence[str]) -> str:
    return f"kernel={lever}" if lever in names else "kernel=plain"


def _samples(
    of: StackSpec,
    names: Sequence[str],
    block: int,
    gain: float,
    slow: float,
    noise: float,
    rng: np.random.Generator,
) -> list[Sample]:
    """One process, or the two that take turns; a slow moment is shared by those two."""
    moment = rng.normal(0, 0.2) if of.interleaved else 0.0
    arms = ("ref", "cand") if of.interleaved and names else ("cand" if names else "ref",)
    if of.interleaved and not names:
        return []
    found = []
    for arm in arms:
        mine = gain if arm == "cand" else 0.0
        rate = 1000.0 * math.exp(mine + moment - slow + float(rng.normal(0, noise)))
        values = {RATE.name: rate, STEP.name: 1e6 / rate}
        found.append(one_sample(block, arm, values))
    return found
