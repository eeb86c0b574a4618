"""Realistic run records for tests of everything that shows or stores a run."""

from __future__ import annotations

import math
from typing import Any

from experiments.parity_records import CheckResult, ParityReport
from experiments.profiling_records import GroupTime, Profile
from experiments.records import (
    ArmFailure,
    AxisState,
    Decision,
    Effect,
    Environment,
    Look,
    LostPair,
    Outcome,
    Sample,
    Timing,
)
from experiments.run_record import RunRecord
from experiments.spec import AbSpec
from experiments.witness_records import Witness
from levers.policy import Axis, GatingPolicy, Guard, ParityClass

TOK_S = {f"decode/tok_s/c{c}": Axis(f"decode/tok_s/c{c}", "tok/s", True) for c in (1, 2, 4, 8)}
TTFT = Axis("decode/ttft_ms/p95", "ms", False)
ITL = Axis("decode/itl_ms/p95", "ms", False)
MEMORY = Axis("memory/peak_bytes", "bytes", False, deterministic=True)
WARMUP = Axis("compile/warmup_s", "s", False)
AXES = (*TOK_S.values(), TTFT, ITL, MEMORY, WARMUP)

POLICY = GatingPolicy(
    primaries=("decode/tok_s/c*",),
    guards=(
        Guard("decode/ttft_ms/p95", 0.03),
        Guard("decode/itl_ms/p95", 0.03),
        Guard("memory/peak_bytes", 0.01),
    ),
)

BASE_VALUES = {
    "decode/tok_s/c1": 245.13,
    "decode/tok_s/c2": 461.2,
    "decode/tok_s/c4": 812.7,
    "decode/tok_s/c8": 1377.4,
    "decode/ttft_ms/p95": 41.7,
    "decode/itl_ms/p95": 4.91,
    "memory/peak_bytes": 2.63 * 2**30,
    "compile/warmup_s": 3.4,
}


def spec(**changes: Any) -> AbSpec:
    """The comparison that all the records here are about."""
    fields: dict[str, Any] = {
        "lever": "fa2_nsplits_cap",
        "ref": "off",
        "cand": "auto",
        "workload": "decode",
        "parameters": {"model": "tiny", "model_digest": "3f9c1c0a77aa10d2", "sms": 48},
        "device": "cpu",
        "seed": 7,
        "oracle": "sdpa",
        "policy": POLICY,
        "levers_source_digest": "a1b2c3d4e5f60718",
    }
    return AbSpec(**{**fields, **changes})


def environment(**changes: Any) -> Environment:
    """A two-core machine."""
    fields: dict[str, Any] = {
        "device_kind": "x86_64 CPU",
        "device_type": "cpu",
        "host": "bench-1",
        "boot_id": "8a6f1e3c",
        "versions": {"torch": "2.13.0", "python": "3.11.9", "triton": "3.9.0"},
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "cpu_count": 2,
        "memory_bytes": 8 * 2**30,
    }
    return Environment(**{**fields, **changes})


def effect(axis: str, percent: float, lower: float, upper: float, sd: float = 1.8) -> Effect:
    """An effect stated in percent."""
    estimate, low, high = (math.log1p(x / 100) for x in (percent, lower, upper))
    return Effect(
        axis=axis,
        kind="t",
        units=13,
        estimate=estimate,
        lower=low,
        upper=high,
        sd=sd / 100,
        nominal_p=0.0056,
        stderr=sd / 100 / math.sqrt(13),
        dof=11,
    )


def state(axis: str, name: str, ratio: float, lower: float, upper: float) -> AxisState:
    """An axis held against PyTorch's own attention."""
    return AxisState.model_validate(
        {
            "axis": axis,
            "state": name,
            "target": ">= 1.00 x sdpa",
            "ratio": ratio,
            "lower": lower,
            "upper": upper,
            "runs": 4,
            "oracle": "sdpa",
            "oracle_mode": "eager-sdpa",
        }
    )


STATES = (
    state("decode/tok_s/c1", "passing", 1.02, 1.011, 1.03),
    state("decode/tok_s/c2", "failing", 0.969, 0.958, 0.98),
    state("decode/tok_s/c4", "undecided", 0.996, 0.981, 1.011),
    state("decode/tok_s/c8", "failing", 0.962, 0.951, 0.973),
)

WITNESSES = (
    Witness(
        arm="ref",
        plans={
            "decode/tok_s/c1": "num_splits=7",
            "decode/tok_s/c2": "num_splits=4",
            "decode/tok_s/c4": "num_splits=3",
            "decode/tok_s/c8": "num_splits=3",
        },
        launches={"decode_attention": 128},
    ),
    Witness(
        arm="cand",
        plans={
            "decode/tok_s/c1": "num_splits=6",
            "decode/tok_s/c2": "num_splits=3",
            "decode/tok_s/c4": "num_splits=3",
            "decode/tok_s/c8": "num_splits=1",
        },
        launches={"decode_attention": 128},
    ),
)

LOSSLESS = ParityClass.LOSSLESS

CHECKS = (
    CheckResult(
        name="op",
        status="passed",
        passed=114,
        total=114,
        worst="error ratio 1.00",
        where="D=128 GQA 4, 896 tokens, cancellation",
        strongest=LOSSLESS,
        seconds=4.2,
        digest="77aa",
    ),
    CheckResult(name="determinism", status="passed", passed=4, total=4, seconds=3.1),
    CheckResult(
        name="tokens",
        status="passed",
        passed=16,
        total=16,
        worst="near-tie gap 0.20 nat",
        where="prompt 11, token 37",
        detail="15/16 strict, 1 near-tie within 0.5 nat",
        strongest=LOSSLESS,
        seconds=6.0,
    ),
    CheckResult(
        name="memcheck",
        status="not-run",
        passed=0,
        total=0,
        detail="memcheck needs CUDA and compute-sanitizer",
    ),
    CheckResult(name="rollback", status="passed", passed=2, total=2, cached=True),
)

PARITY = ParityReport(checks=CHECKS, claimed=LOSSLESS)

EFFECTS = (
    effect("decode/tok_s/c1", 17.0, 14.8, 19.2),
    effect("decode/tok_s/c2", 4.1, 2.2, 6.0),
    effect("decode/tok_s/c4", 0.1, -0.6, 0.8),
    effect("decode/tok_s/c8", 12.3, 9.8, 14.9),
    effect("decode/ttft_ms/p95", -0.4, -1.9, 1.1, sd=2.6),
    effect("decode/itl_ms/p95", 3.0, 1.0, 5.0, sd=2.9),
    Effect(
        axis="memory/peak_bytes",
        kind="deterministic",
        units=13,
        estimate=0.0,
        lower=0.0,
        upper=0.0,
        sd=0.0,
        nominal_p=1.0,
    ),
    effect("compile/warmup_s", -2.0, -9.0, 5.0, sd=9.0),
)


def samples(effects: tuple[Effect, ...], pairs: int) -> tuple[Sample, ...]:
    """Both arms of each pair, the candidate better by the estimates, with a small ripple."""
    made = []
    for pair in range(pairs):
        ripple = 1 + 0.004 * ((pair % 5) - 2)
        for position, arm in enumerate(("ref", "cand") if pair % 2 else ("cand", "ref")):
            made.append(_sample(arm, pair, position, effects, ripple))
    return tuple(made)


def _sample(
    arm: str, pair: int, position: int, effects: tuple[Effect, ...], ripple: float
) -> Sample:
    signs = {axis.name: axis.sign for axis in AXES}
    gain = 1 if arm == "cand" else 0
    values = {
        e.axis: BASE_VALUES[e.axis] * ripple * math.exp(gain * signs[e.axis] * e.estimate)
        for e in effects
    }
    return Sample.model_validate(
        {
            "pair": pair,
            "arm": arm,
            "position": position,
            "values": values,
            "start_s": 0.4,
            "warmup_s": 0.9,
            "measured_s": 2.0,
            "wall_s": 3.4,
            "started_at": f"2026-03-04T10:{pair:02d}:{position * 30:02d}+00:00",
            "inputs_digest": "cafe0123cafe0123",
            "outputs_count": 256,
        }
    )


def record(decision: Decision | None, **changes: Any) -> RunRecord:
    """A run with everything a full measurement leaves."""
    effects = changes.pop("effects", EFFECTS)
    pairs = changes.pop("pairs", 13)
    look = Look(index=2, pairs=pairs, effects=effects, states=changes.pop("states", STATES))
    earlier = tuple(Look(index=i, pairs=n, effects=effects, states=()) for i, n in ((0, 6), (1, 9)))
    fields: dict[str, Any] = {
        "run_id": "20260304T100000Z-5d3c",
        "status": "decided" if decision else "interrupted",
        "spec": spec(),
        "plan_digest": "5e6f708192a3b4c5",
        "created_at": "2026-03-04T10:00:00+00:00",
        "axes": AXES,
        "environment": environment(),
        "witnesses": WITNESSES,
        "parity": PARITY,
        "samples": samples(effects, pairs),
        "looks": (*earlier, look),
        "decision": decision,
        "timing": Timing(
            total_s=152.0,
            parity_s=21.0,
            arms_start_s=9.0,
            arms_warmup_s=25.0,
            arms_measured_s=84.0,
            forkserver_s=6.0,
        ),
    }
    return RunRecord(**{**fields, **changes})


def default_on() -> RunRecord:
    """A win on an axis that misses its target."""
    decision = Decision(
        outcome=Outcome.DEFAULT_ON,
        reason="failing-axis-win",
        axes=("decode/tok_s/c8",),
        smallest_visible=0.019,
        notes=("tokens: 1 of 16 streams differs at a near-tie of 0.20 nat",),
    )
    return record(decision, lost=(LostPair(pair=4, arm="cand", cause="foreign process 4242"),))


def parity_failed() -> RunRecord:
    """The candidate's results are wrong, so nothing was timed."""
    wrong = CheckResult(
        name="op",
        status="failed",
        passed=111,
        total=114,
        worst="error ratio 3.02 (norm), 4.10 (99th-percentile row)",
        where="D=64 GQA 4 | 1 token, large means",
        strongest=ParityClass.BROKEN,
        seconds=4.4,
    )
    decision = Decision(
        outcome=Outcome.GATED_OFF, reason="parity-failed", detail="op: 111 of 114 cases hold"
    )
    report = ParityReport(checks=(wrong,), claimed=LOSSLESS)
    return record(decision, parity=report, samples=(), looks=())


def regression() -> RunRecord:
    """A win at c1 does not pay for a loss at c8."""
    decision = Decision(
        outcome=Outcome.GATED_OFF,
        reason="regression",
        axes=("decode/tok_s/c8",),
        smallest_visible=0.019,
    )
    effects = (*EFFECTS[:3], effect("decode/tok_s/c8", -20.0, -22.0, -18.0), *EFFECTS[4:])
    return record(decision, effects=effects)


def out_of_memory() -> RunRecord:
    """The candidate could not do what the reference did."""
    decision = Decision(outcome=Outcome.GATED_OFF, reason="out-of-memory")
    failure = ArmFailure(
        arm="cand",
        kind="out-of-memory",
        stage="warm-up",
        message="tried to allocate 2.10 GiB <of> 1.4 GiB free | last bucket",
        traceback="Traceback (most recent call last):\n  ...\nMemoryError",
    )
    return record(decision, failures=(failure,), samples=(), looks=())


def terminal() -> RunRecord:
    """Statistically clear on one axis, and too small to keep on all of them."""
    decision = Decision(
        outcome=Outcome.TERMINAL,
        reason="not-worth-keeping",
        axes=tuple(TOK_S),
        smallest_visible=0.004,
    )
    small = (
        effect("decode/tok_s/c1", 0.3, 0.11, 0.49, sd=0.3),
        effect("decode/tok_s/c2", 0.05, -0.2, 0.3, sd=0.4),
        effect("decode/tok_s/c4", 0.0, -0.3, 0.3, sd=0.4),
        effect("decode/tok_s/c8", -0.1, -0.4, 0.2, sd=0.4),
        *EFFECTS[4:],
    )
    return record(decision, effects=small)


def inconclusive() -> RunRecord:
    """Too noisy to prove a guard."""
    decision = Decision(
        outcome=Outcome.INCONCLUSIVE,
        reason="guard-undecided",
        axes=("decode/ttft_ms/p95",),
        undecided=("decode/ttft_ms/p95",),
        detail="undecided: guard decode/ttft_ms/p95 +0.20 % [-5.60, 6.00] against -3 %",
        smallest_visible=0.031,
        pairs_needed=61,
        minutes_needed=9.5,
    )
    noisy = (*EFFECTS[:4], effect("decode/ttft_ms/p95", 0.2, -5.6, 6.0, sd=7.9), *EFFECTS[5:])
    return record(decision, effects=noisy, warnings=("load average 3.1 on 2 cores",))


def not_engaged() -> RunRecord:
    """Both arms ran the same path."""
    decision = Decision(outcome=Outcome.INVALID, reason="not-engaged")
    same = (WITNESSES[0], WITNESSES[0].model_copy(update={"arm": "cand"}))
    fault = (("not-engaged", "both arms ran num_splits=7 on every axis"),)
    return record(decision, witnesses=same, faults=fault, samples=(), looks=(), parity=None)


def interrupted() -> RunRecord:
    """A run that was stopped after five pairs."""
    return record(None, looks=(), samples=samples(EFFECTS, 5), timing=None)


ALL = {
    "default_on": default_on,
    "parity_failed": parity_failed,
    "regression": regression,
    "out_of_memory": out_of_memory,
    "terminal": terminal,
    "inconclusive": inconclusive,
    "not_engaged": not_engaged,
    "interrupted": interrupted,
}


def profile() -> Profile:
    """A profile of a step on a GPU, in two groups."""
    return Profile(
        device_kind="NVIDIA H200",
        levers=("fa2_nsplits_cap=auto",),
        steps=3,
        step_ms=10.0,
        plain_step_ms=10.0,
        profiled_step_ms=11.0,
        level="kernels",
        unit="step",
        groups=(
            GroupTime(group="gemm", ms=7.0, launches=4.0, flop=2e12),
            GroupTime(group="host gap", ms=3.0),
        ),
    )
