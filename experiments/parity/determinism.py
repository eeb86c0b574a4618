"""Check 2, ``determinism``: each arm against itself in fresh processes, then against the other.

Two processes of an arm with the same inputs either leave the same bytes or show that the arm does
not repeat itself, and then nothing can be called byte-exact. Non-finite outputs end the run. Where
byte-exactness is claimed the first process of an arm repeats its work 30 times on equal inputs, as
the op check repeats the operation itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from experiments.parity.arms import Arms
from experiments.parity.bench import Bench
from experiments.parity.results import empty, failed, reference_fault
from experiments.parity_records import CheckResult
from experiments.tasks import Outputs, Task
from experiments.values import digest_of, unlike
from levers.policy import ParityClass

NAME = "determinism"


def check(bench: Bench) -> CheckResult:
    """Run K processes of each arm and compare their digests.

    Raises:
        ProcessFailed: a process failed.
    """
    refs, cands = digests(bench, bench.alone, bench.limits.repeats)
    return judge(refs, cands, demands_bits=bench.demands_bits)


def ahead(bench: Bench) -> tuple[Task, ...]:
    """The processes that :func:`check` will ask for."""
    return digest_tasks(bench, bench.alone, bench.limits.repeats)


def digest_tasks(bench: Bench, arms: Arms, repeats: int) -> tuple[Task, ...]:
    """The processes that :func:`digests` will ask for."""
    kinds: tuple[Literal["ref", "cand"], ...] = ("ref", "cand")
    return tuple(
        task
        for arm in kinds
        for k in range(repeats)
        for task in bench.digest_tasks(arm, arms.of(arm), repeat=k)
    )


def digests(bench: Bench, arms: Arms, repeats: int) -> tuple[list[Outputs], list[Outputs]]:
    """The digests of K processes of each arm; the reference's come first."""
    refs = [bench.digests("ref", arms.ref, repeat=k) for k in range(repeats)]
    cands = [bench.digests("cand", arms.cand, repeat=k) for k in range(repeats)]
    return refs, cands


def judge(
    refs: Sequence[Outputs], cands: Sequence[Outputs], *, demands_bits: bool, name: str = NAME
) -> CheckResult:
    """What the digests of both arms' processes allow to claim."""
    fault = _fault(refs, cands, demands_bits=demands_bits, name=name)
    if fault is not None:
        return fault
    unsteady = {"reference": changing(refs), "candidate": changing(cands)}
    apart = _between([refs[0], cands[0]])
    steady = not any(unsteady.values())
    runs = len(refs) + len(cands)
    keys = len(refs[0].digests)
    return CheckResult(
        name=name,
        status="passed",
        passed=runs,
        total=runs,
        worst=f"{len(apart)} of {keys} outputs differ between the arms" if apart else "",
        where=_first(apart),
        detail=_detail(unsteady, keys, bits=not apart),
        strongest=ParityClass.BYTE_EXACT if steady and not apart else ParityClass.LOSSLESS,
        figures={
            "outputs": keys,
            "outputs_apart": len(apart),
            "reference_unsteady": len(unsteady["reference"]),
            "candidate_unsteady": len(unsteady["candidate"]),
            "processes_per_arm": len(refs),
        },
        digest=digest_of(str(sorted(cands[0].digests.items()))),
    )


def _fault(
    refs: Sequence[Outputs], cands: Sequence[Outputs], *, demands_bits: bool, name: str
) -> CheckResult | None:
    """What ends the check before a class is spoken of; the reference's faults first."""
    runs = len(refs) + len(cands)
    if not refs[0].digests:
        return empty(name, "the reference left no output to compare")
    bad = nonfinite(refs)
    if bad:
        return reference_fault(name, "not-finite", f"reference: {bad}", counts=(0, runs))
    both = (*refs, *cands)
    if len({one.inputs_digest for one in both}) > 1:
        all_apart = (unlike(refs[0].inputs_digest, one.inputs_digest) for one in both)
        apart = next(filter(None, all_apart), "")
        return empty(name, f"the processes did not work on the same inputs ({apart})")
    unsteady = changing(refs)
    if unsteady and demands_bits:
        what = f"reference: {len(unsteady)} outputs differ between {len(refs)} equal runs"
        return reference_fault(name, "not-deterministic", what, _first(unsteady), (0, runs))
    bad = nonfinite(cands)
    if bad:
        return failed(name, f"candidate: {bad}", "", (len(refs), runs))
    missing = sorted(set(refs[0].digests) ^ set(cands[0].digests))
    if missing:
        what = f"{len(missing)} outputs are there in one arm only"
        return failed(name, what, _first(missing), (len(refs), runs))
    return None


def nonfinite(outputs: Sequence[Outputs]) -> str:
    """The non-finite values of an arm in words, empty if there is none."""
    for one in outputs:
        for key, count in one.nonfinite.items():
            if count:
                return f"{count} non-finite values in {key}"
    return ""


def changing(outputs: Sequence[Outputs]) -> list[str]:
    """The outputs whose digests are not the same in all of these processes, or within one."""
    within = {name for one in outputs for name in one.unsteady}
    return sorted({*_between(outputs), *within})


def _between(outputs: Sequence[Outputs]) -> list[str]:
    names = sorted(set().union(*(one.digests for one in outputs)))
    return [key for key in names if len({one.digests.get(key) for one in outputs}) > 1]


def _first(names: Sequence[str]) -> str:
    return f"{names[0]}{' ...' if len(names) > 1 else ''}" if names else ""


def _detail(unsteady: Mapping[str, Sequence[str]], keys: int, *, bits: bool) -> str:
    parts = [
        f"{arm} not deterministic: {len(names)} of {keys} outputs differ from run to run"
        if names
        else f"{arm} equals itself"
        for arm, names in unsteady.items()
    ]
    parts.append("arms bit for bit equal" if bits else "arms not bit for bit equal")
    return "; ".join(parts)
