"""Check 3, ``tokens``: greedy decoding of fixed prompts by both arms, alone and under load.

The reference is run against itself first. *Strict*: every stream of the candidate must be equal.
Otherwise *near-tie*: for a stream that differs the reference is teacher-forced on the common
prefix, and the gap between its own choice and the candidate's says whether the divergence is a
near-tie. Of all streams compared at most ``floor(share x streams)`` may be near-ties, beside as
many as the reference has against itself. Lengths and ends must agree: a shorter answer is never a
speed-up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from experiments.parity.bench import Arms, Bench, concurrencies
from experiments.parity.results import empty, failed, not_run, reference_fault
from experiments.parity_records import CheckResult
from experiments.tasks import Outputs, Stream
from experiments.values import Scalar, digest_of
from levers.policy import GatingPolicy, ParityClass

NAME = "tokens"
RANDOM_MODEL = "random-"
FEWEST_REPEATED = 4


@dataclass(frozen=True, slots=True)
class Mode:
    """One way of decoding the prompts: alone, under load, or without the captured graph."""

    name: str
    arguments: Mapping[str, Any]
    parameters: Mapping[str, Scalar]


@dataclass(frozen=True, slots=True)
class Divergence:
    """A stream that differs: its first different token, and the reference's gap there in nat."""

    mode: str
    prompt: int
    position: int
    prefix: tuple[int, ...]
    token: int
    gap_nat: float | None = None

    def describe(self) -> str:
        """``prompt 7 (loaded), token 31, gap 0.20 nat``."""
        gap = "not asked" if self.gap_nat is None else f"{self.gap_nat:.3g} nat"
        return f"prompt {self.prompt} ({self.mode}), token {self.position}, gap {gap}"


@dataclass(frozen=True, slots=True)
class Compared:
    """What the streams of all modes showed."""

    total: int
    divergences: tuple[Divergence, ...]
    shorter: tuple[str, ...]
    reference_apart: int
    digest: str


def check(bench: Bench) -> CheckResult:
    """Decode the prompts with both arms and classify every stream.

    Raises:
        ProcessFailed: a process failed.
    """
    reason = no_claim(bench)
    return not_run(NAME, reason) if reason else run(bench, bench.alone, NAME)


def no_claim(bench: Bench) -> str:
    """Why token equality means nothing here; empty where it does."""
    if NAME not in bench.workload.checks:
        return f"the workload {bench.spec.workload} decodes no tokens"
    model = str(bench.spec.parameters.get("model", ""))
    if model.startswith(RANDOM_MODEL):
        return f"model {model} has random weights: its tokens carry no claim"
    return ""


def run(bench: Bench, arms: Arms, name: str) -> CheckResult:
    """The whole token check for one pair of lever sets.

    Raises:
        ProcessFailed: a process failed.
    """
    parts: list[Compared] = []
    for mode in modes(bench):
        ref = _ask(bench, "ref", arms, mode)
        again = _ask(bench, "ref", arms, repeated(bench, mode), repeat=1)
        cand = _ask(bench, "cand", arms, mode)
        fault = _fault(name, mode, ref, again, cand, bench)
        if fault is not None:
            return fault
        compared = compare(mode.name, ref, again, cand)
        parts.append(replace(compared, divergences=_with_gaps(bench, arms, mode, compared)))
    return judge(name, merge(parts), bench.spec.policy, strict=bench.strict)


def modes(bench: Bench) -> tuple[Mode, ...]:
    """Alone and at the largest concurrency; also eager where the workload captures a graph."""
    parameters = bench.spec.parameters
    most = max(concurrencies(parameters), default=1)
    alone = Mode("alone", {**_want(bench), "concurrency": 1}, parameters)
    loaded = Mode("loaded", {**_want(bench), "concurrency": most}, parameters)
    found = [alone, loaded] if most > 1 else [alone]
    if parameters.get("graph") == "on":
        found.append(replace(found[-1], name="eager", parameters={**parameters, "graph": "off"}))
    return tuple(found)


def _want(bench: Bench) -> dict[str, Any]:
    return {"want": "tokens", "prompts": bench.limits.prompts}


def repeated(bench: Bench, mode: Mode) -> Mode:
    """What the reference decodes a second time: all prompts where bits matter, else a quarter.

    A stream that was not repeated gets no allowance for the reference's own divergences.
    """
    if bench.strict or bench.demands_bits:
        return mode
    some = min(bench.limits.prompts, max(FEWEST_REPEATED, bench.limits.prompts // 4))
    return replace(mode, arguments={**mode.arguments, "prompts": some})


def _ask(
    bench: Bench, arm: Literal["ref", "cand"], arms: Arms, mode: Mode, *, repeat: int = 0
) -> Outputs:
    return bench.outputs(
        arm, arms.of(arm), mode.arguments, repeat=repeat, parameters=mode.parameters
    )


def _fault(
    name: str, mode: Mode, ref: Outputs, again: Outputs, cand: Outputs, bench: Bench
) -> CheckResult | None:
    """What ends the check before streams are compared."""
    if not any(stream.tokens for stream in ref.streams):
        return empty(name, f"{mode.name}: the reference produced no token")
    if ref.inputs_digest != cand.inputs_digest:
        return empty(name, f"{mode.name}: the processes did not decode the same prompts")
    apart = _apart(ref, again)
    if apart and bench.demands_bits:
        what = f"reference not deterministic: {len(apart)} of {len(again.streams)} streams differ"
        where = f"prompt {apart[0]} ({mode.name})"
        counts = (len(again.streams) - len(apart), len(again.streams))
        return reference_fault(name, "not-deterministic", what, where, counts)
    return None


def _apart(ref: Outputs, again: Outputs) -> list[int]:
    """The prompts that the reference answers otherwise the second time."""
    first = {stream.prompt: stream for stream in ref.streams}
    return [one.prompt for one in again.streams if first.get(one.prompt) != one]


def compare(mode: str, ref: Outputs, again: Outputs, cand: Outputs) -> Compared:
    """Stream by stream: first divergences, and answers that end elsewhere."""
    others = {stream.prompt: stream for stream in cand.streams}
    divergences: list[Divergence] = []
    shorter: list[str] = []
    for stream in ref.streams:
        other = others.pop(stream.prompt, None)
        ended = _ended(stream, other)
        if ended:
            shorter.append(f"prompt {stream.prompt} ({mode}) {ended}")
        found = None if other is None else first_divergence(mode, stream, other)
        if found is not None:
            divergences.append(found)
    shorter += [f"prompt {prompt} ({mode}) was not asked for" for prompt in others]
    return Compared(
        total=len(ref.streams),
        divergences=tuple(divergences),
        shorter=tuple(shorter),
        reference_apart=len(_apart(ref, again)),
        digest=digest_of(str([(s.prompt, s.tokens, s.finish) for s in cand.streams])),
    )


def _ended(ref: Stream, cand: Stream | None) -> str:
    """How the candidate's answer ends otherwise than the reference's; empty where it does not."""
    if cand is None:
        return "has no answer"
    if len(cand.tokens) != len(ref.tokens):
        return f"ends after {len(cand.tokens)} tokens, the reference after {len(ref.tokens)}"
    if cand.finish != ref.finish:
        return f"ends by {cand.finish}, the reference by {ref.finish}"
    return ""


def first_divergence(mode: str, ref: Stream, cand: Stream) -> Divergence | None:
    """The first token at which two answers differ, None where one only goes on after the other."""
    for position, (own, other) in enumerate(zip(ref.tokens, cand.tokens, strict=False)):
        if own != other:
            return Divergence(mode, ref.prompt, position, ref.tokens[:position], other)
    return None


def _with_gaps(bench: Bench, arms: Arms, mode: Mode, compared: Compared) -> tuple[Divergence, ...]:
    """Teacher-force the reference on the common prefixes and note its gaps."""
    if not compared.divergences:
        return ()
    prefixes = [[one.prompt, list(one.prefix), one.token] for one in compared.divergences]
    wanted = {**mode.arguments, "want": "gaps", "prefixes": prefixes}
    gaps = bench.outputs("ref", arms.ref, wanted, parameters=mode.parameters).gaps
    return tuple(
        replace(one, gap_nat=gap) for one, gap in zip(compared.divergences, gaps, strict=True)
    )


def merge(parts: Sequence[Compared]) -> Compared:
    """All modes together."""
    return Compared(
        total=sum(part.total for part in parts),
        divergences=tuple(one for part in parts for one in part.divergences),
        shorter=tuple(one for part in parts for one in part.shorter),
        reference_apart=sum(part.reference_apart for part in parts),
        digest=digest_of(" ".join(part.digest for part in parts)),
    )


def judge(name: str, compared: Compared, policy: GatingPolicy, *, strict: bool) -> CheckResult:
    """Strict or near-tie, by the policy; the worst divergence is shown either way."""
    wide = [one for one in compared.divergences if not _near_tie(one, policy)]
    allowed = int(policy.near_tie_share * compared.total + 1e-9) + compared.reference_apart
    equal = compared.total - len(compared.divergences)
    worst = max(compared.divergences, key=_gap, default=None)
    where = worst.describe() if worst else ""
    detail = _detail(compared, wide, allowed, strict=strict)
    wrong = _wrong(compared, wide, allowed, strict=strict)
    if wrong:
        counts = (min(equal, compared.total - 1), compared.total)
        return failed(name, wrong, where, counts, detail)
    return CheckResult(
        name=name,
        status="passed",
        passed=compared.total,
        total=compared.total,
        worst=f"{len(compared.divergences)} near-ties" if worst else "",
        where=where,
        detail=detail,
        strongest=ParityClass.LOSSLESS if worst else ParityClass.BYTE_EXACT,
        figures={
            "streams": compared.total,
            "streams_equal": equal,
            "near_ties": len(compared.divergences),
            "near_ties_allowed": allowed,
            "worst_gap_nat": _gap(worst) if worst else 0.0,
            "reference_apart": compared.reference_apart,
        },
        digest=compared.digest,
    )


def _wrong(compared: Compared, wide: Sequence[Divergence], allowed: int, *, strict: bool) -> str:
    """Why the check fails, in words; empty where it passes."""
    apart = len(compared.divergences)
    if compared.shorter:
        return compared.shorter[0]
    if strict and apart:
        return f"{compared.total - apart} of {compared.total} streams equal, all must be"
    if wide:
        return f"{len(wide)} streams leave the reference's by more than a near-tie"
    return f"{apart} near-ties where {allowed} are allowed" if apart > allowed else ""


def _near_tie(divergence: Divergence, policy: GatingPolicy) -> bool:
    """A gap below zero, or none at all, is not a near-tie but a contradiction."""
    gap = divergence.gap_nat
    return gap is not None and 0.0 <= gap <= policy.near_tie_gap_nat


def _gap(divergence: Divergence) -> float:
    return float("inf") if divergence.gap_nat is None else divergence.gap_nat


def _detail(compared: Compared, wide: Sequence[Divergence], allowed: int, *, strict: bool) -> str:
    equal = compared.total - len(compared.divergences)
    ties = len(compared.divergences) - len(wide)
    rule = "strict" if strict else f"near-ties allowed: {allowed}"
    parts = [f"{equal}/{compared.total} streams equal, {ties} near-ties ({rule})"]
    if compared.reference_apart:
        parts.append(
            f"reference not deterministic: {compared.reference_apart} streams differ from itself"
        )
    return "; ".join(parts)
