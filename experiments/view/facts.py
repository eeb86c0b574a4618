"""What is printed beside every verdict, and where and with what a run was made."""

from __future__ import annotations

import shlex

from experiments import formats
from experiments.floors import floor_facts
from experiments.oracle_facts import oracle_ran
from experiments.records import Effect, Sample
from experiments.requests import NO_ORACLE, FalseVerdictRate, Standing
from experiments.run_record import RunRecord
from experiments.spec import RANKS, told
from experiments.view.arms import arm_facts

Fact = tuple[str, str]
"""A label and its text."""

MOST_EFFECTS = 4
"""Effects listed beside a verdict; the table has them all."""


def beside_facts(record: RunRecord, standing: Standing, *, hide_speed: bool) -> tuple[Fact, ...]:
    """Effect, threshold, pairs, noise, smallest visible effect and false-verdict rate."""
    speed = () if hide_speed else _speed_facts(record)
    return (*speed, *_price(record), ("false verdicts", calibration(standing.calibration)))


def _price(record: RunRecord) -> tuple[Fact, ...]:
    """What would settle a run that is inconclusive."""
    decision = record.decision
    if decision is None or decision.pairs_needed is None:
        return ()
    pairs = formats.count(decision.pairs_needed, "further pair")
    minutes = decision.minutes_needed
    time = "" if minutes is None else f", about {formats.duration(minutes * 60)}"
    return (("would settle it", f"{pairs}{time}"),)


def _speed_facts(record: RunRecord) -> tuple[Fact, ...]:
    policy, decision = record.spec.policy, record.decision
    effects = _headline_effects(record)
    seen = decision.smallest_visible if decision else None
    return (
        ("effect", "; ".join(_effect(effect) for effect in effects[:MOST_EFFECTS])),
        ("worth keeping", f"from {formats.margin(policy.smallest_gain)} (the practical threshold)"),
        ("pairs used", _pairs(record)),
        ("noise s", ", ".join(_noise(effect) for effect in effects[:MOST_EFFECTS])),
        (
            "smallest visible",
            formats.margin(seen) if seen is not None else "not known",
        ),
        *floor_facts(record),
    )


def _headline_effects(record: RunRecord) -> list[Effect]:
    """The deciding axes' effects, or all the primaries' where none decided."""
    effects = record.looks[-1].effects
    axes = record.decision.axes if record.decision else ()
    deciding = [effect for effect in effects if effect.axis in axes]
    return deciding or [e for e in effects if record.spec.policy.is_primary(e.axis)]


def _effect(effect: Effect) -> str:
    shown = formats.effect(effect.estimate, effect.lower, effect.upper)
    return f"{effect.axis} {shown}"


def _noise(effect: Effect) -> str:
    return f"{effect.sd * 100:.2g} % ({effect.axis.rpartition('/')[2]})"


def _pairs(record: RunRecord) -> str:
    look, looks = record.looks[-1], record.spec.looks
    lost = f", {formats.count(len(record.lost), 'pair')} lost" if record.lost else ""
    return f"{look.pairs} of at most {looks[-1]} (look {len(record.looks)} of {len(looks)}){lost}"


def calibration(rate: FalseVerdictRate | None) -> str:
    """The false-verdict rate of this machine and workload, or that it is not known."""
    if rate is None:
        return "not calibrated on this machine and workload"
    low, high = rate.lower * 100, rate.upper * 100
    stale = ", STALE" if rate.stale else ""
    measured = f"A/A of {formats.day(rate.measured_at)}"
    return f"{formats.share(rate.rate)} [{low:.1f}, {high:.1f}] ({measured}{stale})"


def provenance_facts(record: RunRecord) -> tuple[Fact, ...]:
    """Scope, stack, device, commit and digests."""
    spec, env = record.spec, record.environment
    commit = (env.commit[:12] + (" with local changes" if env.dirty else "")) or "not known"
    policy = spec.policy
    guards = ", ".join(f"{g.axis} {_guard(g.margin, g.ceiling)}" for g in policy.guards)
    facts: list[Fact] = [
        ("run", f"{record.run_id} ({formats.day(record.created_at)})"),
        ("scope", f"{spec.scope} on {env.device_kind}"),
        ("parameters", ", ".join(f"{k}={v}" for k, v in sorted(spec.parameters.items()))),
        ("other levers on", ", ".join(str(lever) for lever in spec.stack) or "none"),
        ("tokens on", told(spec.tokens_on, spec.parameters)),
        ("stack", env.stack),
        ("device", _device(record)),
        ("policy", f"primaries {', '.join(policy.primaries)}; guards {guards or 'none'}"),
        ("parity demanded", policy.demanded.value),
        ("oracle", spec.oracle or "none"),
        ("oracle ran", oracle_ran(record.samples)),
        ("seed", str(spec.seed)),
        ("commit", commit),
        ("plan digest", record.plan_digest),
        ("lever source digest", spec.levers_source_digest or "not known"),
        ("inputs digest", _inputs(record.samples)),
        ("removed variables", ", ".join(sorted(env.removed_variables))),
    ]
    facts += arm_facts(record)
    facts += _timing(record)
    return tuple(fact for fact in facts if fact[1])


def _guard(margin: float, ceiling: float | None) -> str:
    if ceiling is not None:
        return f"at most {formats.share(ceiling)}"
    return f"-{formats.margin(margin)}"


def _device(record: RunRecord) -> str:
    env = record.environment
    device = f"{record.spec.device}, {env.device_kind}"
    memory = env.device_memory_bytes or env.memory_bytes
    size = formats.size(memory)
    sms = f", {env.sm_count} SMs" if env.sm_count else ""
    return f"{device}{sms}, {size}, {formats.count(env.cpu_count, 'CPU core')}, host {env.host}"


def _inputs(samples: tuple[Sample, ...]) -> str:
    digests = sorted({sample.inputs_digest for sample in samples if sample.inputs_digest})
    if len(digests) > 2:
        return f"{digests[0]} and {len(digests) - 1} more"
    return ", ".join(digests)


def _timing(record: RunRecord) -> list[Fact]:
    timing = record.timing
    if timing is None:
        return []
    parts = (
        f"{formats.duration(timing.total_s)} in all, parity {formats.duration(timing.parity_s)}, "
        f"the arms' own work {formats.duration(timing.arms_warmup_s + timing.arms_measured_s)}, "
        f"overhead {formats.share(timing.overhead_share)}"
    )
    return [("time", parts)]


def reproduce_command(record: RunRecord) -> str:
    """The command that asks for the same comparison; digests are results and not asked for."""
    spec = record.spec
    words = ["levergate", "ab", spec.lever, "--ref", spec.ref, "--cand", spec.cand]
    words += ["--workload", spec.workload, "--device", spec.device, "--seed", str(spec.seed)]
    words += ["--oracle", spec.oracle or NO_ORACLE, "--pairs", str(spec.looks[-1])]
    words += ["--budget", f"{spec.budget_s:.10g}s"] if spec.budget_s is not None else []
    words += ["--sequential", spec.sequential] if spec.sequential == "anytime" else []
    words += ["--ranks", str(spec.ranks)] if spec.ranks > 1 else []
    for one in spec.stack:
        words += ["--with", str(one)]
    for name, value in sorted(spec.parameters.items()):
        if value is not None and name != RANKS and not name.endswith("digest"):
            words += ["--set", f"{name}={value}"]
    for model in spec.tokens_on:
        words += ["--tokens-on", model.text]
    return shlex.join(words)
