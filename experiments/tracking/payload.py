"""A run as MLflow will hold it: plain values, drawn from the record (pure, without mlflow).

One parent run per A/B carries the effects; each arm is a child run that carries its own values, one
step per pair. All timestamps come from the record, so that writing a payload twice leaves one copy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from experiments import stats
from experiments.evidence import Scope
from experiments.records import Outcome, Sample
from experiments.run_record import RunRecord
from experiments.spec import told
from experiments.values import FrozenMap, Value

TAG_CHARACTERS = 8000
"""MLflow's limit of a tag, and so of the description, which is one."""

PARAM_CHARACTERS = 6000
"""MLflow's limit of a parameter."""

NOTE = "mlflow.note.content"
POINTER = "\n\nCut here; the whole text is the artifact `verdict.md` of this run.\n"

Status = Literal["FINISHED", "FAILED", "KILLED", "RUNNING"]


class Point(NamedTuple):
    """One value of a metric; the time is in ms since 1970."""

    key: str
    value: float
    timestamp_ms: int
    step: int


class RunPayload(Value):
    """One MLflow run: the A/B itself (``role`` is ``ab``) or one of its arms."""

    role: str
    name: str
    status: Status
    start_ms: int
    end_ms: int
    tags: FrozenMap[str]
    params: FrozenMap[str]
    metrics: tuple[Point, ...]


class Payload(Value):
    """One A/B with its arms, under the experiment of its lever."""

    experiment: str
    run_id: str
    version: str
    parent: RunPayload
    arms: tuple[RunPayload, ...]


def payload(record: RunRecord, description: str, version: str | None = None) -> Payload:
    """What MLflow will hold of a run.

    Args:
        record: the run.
        description: Markdown for the run's page, cut at :data:`TAG_CHARACTERS` with a pointer.
        version: what the page holds; by default the record's digest.
    """
    arms = dict.fromkeys(("ref", "cand", *(sample.arm for sample in record.samples)))
    return Payload(
        experiment=record.spec.lever,
        run_id=record.run_id,
        version=version or record.content_digest(),
        parent=_parent(record, description),
        arms=tuple(_arm(record, arm) for arm in arms),
    )


def cut(text: str, limit: int = TAG_CHARACTERS, pointer: str = POINTER) -> str:
    """The text, or its beginning up to a line's end with a pointer to the rest."""
    if len(text) <= limit:
        return text
    kept = text[: limit - len(pointer)]
    return kept[: max(kept.rfind("\n"), 0) or len(kept)] + pointer


def metric_name(name: str) -> str:
    """A name that MLflow takes: letters, digits, ``_ - . / :`` and space."""
    return re.sub(r"[^A-Za-z0-9_\-./: ]", "_", name)


def _parent(record: RunRecord, description: str) -> RunPayload:
    start, end = _span(record)
    spec, decision = record.spec, record.decision
    verdict = f"{decision.outcome} ({decision.reason})" if decision else record.status
    return RunPayload(
        role="ab",
        name=f"{spec.cand} vs {spec.ref}: {verdict}",
        status=_status(record),
        start_ms=start,
        end_ms=end,
        tags=_tags(record, "ab") | {NOTE: cut(description)},
        params=_params(record),
        metrics=tuple(_clean([*_effects(record), *_looks(record), *_summary(record)])),
    )


def _arm(record: RunRecord, arm: str) -> RunPayload:
    samples = [sample for sample in record.samples if sample.arm == arm]
    setting = {"ref": record.spec.ref, "cand": record.spec.cand}.get(arm, record.spec.oracle or "")
    failed = any(failure.arm == arm for failure in record.failures)
    plans = next((one.plans for one in record.witnesses if one.arm == arm), {})
    start, end = _span(record, samples)
    return RunPayload(
        role="arm",
        name=f"{arm}: {record.spec.lever}={setting}" if arm in ("ref", "cand") else arm,
        status="FAILED" if failed else _arm_status(record),
        start_ms=start,
        end_ms=end,
        tags=_tags(record, "arm") | {"levergate.arm": arm, "levergate.setting": setting},
        params={
            f"plan/{axis}": cut(plan, PARAM_CHARACTERS, " ...") for axis, plan in plans.items()
        },
        metrics=tuple(_clean([point for one in samples for point in _values(one)])),
    )


def _values(sample: Sample) -> Iterator[Point]:
    at = _ms(sample.started_at)
    times = {
        "process/start_s": sample.start_s,
        "process/warmup_s": sample.warmup_s,
        "process/measured_s": sample.measured_s,
        "process/wall_s": sample.wall_s,
    }
    for key, value in {**sample.values, **times}.items():
        yield Point(metric_name(key), value, at, sample.pair)


def _effects(record: RunRecord) -> Iterator[Point]:
    """The effect of each valid pair, in percent."""
    pairs = stats.paired(record.samples, record.lost)
    started = {(one.pair, one.arm): _ms(one.started_at) for one in record.samples}
    for axis in record.axes:
        ratios = stats.log_ratios(axis, pairs)
        if ratios is None or not record.looks:
            continue
        for pair, ratio in zip(pairs, ratios, strict=True):
            at = max(started[pair.pair, "ref"], started[pair.pair, "cand"])
            key = metric_name(f"effect_percent/{axis.name}")
            yield Point(key, percent(float(ratio)), at, pair.pair)


def _looks(record: RunRecord) -> Iterator[Point]:
    """The estimate and interval at each look, in percent; the step is the number of pairs."""
    at = _span(record)[1]
    for look in record.looks:
        for one in look.effects:
            ends = {"estimate": one.estimate, "lower": one.lower, "upper": one.upper}
            for name, value in ends.items():
                key = metric_name(f"{name}_percent/{one.axis}")
                yield Point(key, percent(value), at, look.pairs)


def _summary(record: RunRecord) -> Iterator[Point]:
    at = _span(record)[1]
    for check in record.parity.checks if record.parity else ():
        yield Point(metric_name(f"parity/{check.name}/passed"), check.passed, at, 0)
        yield Point(metric_name(f"parity/{check.name}/total"), check.total, at, 0)
    if record.timing is not None:
        yield Point("timing/total_s", record.timing.total_s, at, 0)
        yield Point("timing/parity_s", record.timing.parity_s, at, 0)
        yield Point("timing/overhead_share", record.timing.overhead_share, at, 0)
    yield Point("pairs/lost", len({one.pair for one in record.lost}), at, 0)


def percent(log_ratio: float) -> float:
    """A log ratio as a percentage: 0.01 is about 1."""
    return math.expm1(log_ratio) * 100 if log_ratio < 700 else math.inf


def _clean(points: list[Point]) -> Iterator[Point]:
    """Without what is not finite, which MLflow would store as another number."""
    return (Point(*point) for point in points if math.isfinite(point.value))


def _tags(record: RunRecord, role: str) -> dict[str, str]:
    spec, here, decision = record.spec, record.environment, record.decision
    tags = {
        "run_id": record.run_id,
        "role": role,
        "digest": record.content_digest(),
        "kind": record.kind,
        "lever": spec.lever,
        "ref": spec.ref,
        "cand": spec.cand,
        "workload": spec.workload,
        "scope": str(Scope.of(record)),
        "device_kind": here.device_kind,
        "stack": here.stack,
        "measured_on": here.host,
        "measured_boot_id": here.boot_id,
        "status": record.status,
        "outcome": decision.outcome.value if decision else "",
        "reason": decision.reason if decision else "",
        "parity": record.parity.parity_class.value if record.parity else "",
    }
    named = {f"levergate.{key}": cut(value, pointer=" ...") for key, value in tags.items()}
    return named | {"mlflow.source.name": "levergate ab", "mlflow.source.type": "LOCAL"}


def _params(record: RunRecord) -> dict[str, str]:
    spec = record.spec
    params: Mapping[str, object] = {
        "lever": spec.lever,
        "ref": spec.ref,
        "cand": spec.cand,
        "workload": spec.workload,
        "device": spec.device,
        "seed": spec.seed,
        "looks": " ".join(map(str, spec.looks)),
        "oracle": spec.oracle or "",
        "stack": " ".join(map(str, spec.stack)),
        "plan_digest": record.plan_digest,
        **{f"workload/{name}": value for name, value in spec.parameters.items()},
        **({"tokens_on": on} if (on := told(spec.tokens_on, spec.parameters)) else {}),
    }
    return {name: _param(value) for name, value in params.items()}


def _param(value: object) -> str:
    return cut(str(value), PARAM_CHARACTERS, " ...")


def _status(record: RunRecord) -> Status:
    """A verdict, whichever, is a finished run; an invalid one failed."""
    if record.decision is not None:
        return "FAILED" if record.decision.outcome is Outcome.INVALID else "FINISHED"
    return "RUNNING" if record.status == "running" else "KILLED"


def _arm_status(record: RunRecord) -> Status:
    return "FINISHED" if record.status == "decided" else _status(record)


def _span(record: RunRecord, samples: Sequence[Sample] = ()) -> tuple[int, int]:
    """Start and end of the run, or of some of its samples, in ms since 1970."""
    seen = samples or record.samples
    starts = [_ms(one.started_at) for one in samples] or [_ms(record.created_at)]
    ends = [_ms(one.started_at) + round(one.wall_s * 1000) for one in seen]
    total = round(record.timing.total_s * 1000) if record.timing and not samples else 0
    return min(starts), max([min(starts) + total, *ends])


def _ms(moment: str) -> int:
    parsed = datetime.fromisoformat(moment)
    return round((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp() * 1000)
