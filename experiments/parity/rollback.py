"""Check 9, ``rollback``: the kill switch at ``off`` against a process that never saw the lever.

Both are held to the reference's own determinism: outputs that the plain process does not repeat
itself prove nothing and are left out. Where it repeats some and not others, an output that differs
is asked for again on both sides: few repeats cannot tell a rare change (atomics) from a defect. A
difference in what is left means that the lever is defective: off does not bring back what was.
"""

from __future__ import annotations

from experiments.parity.bench import Bench
from experiments.parity.determinism import changing
from experiments.parity.results import empty
from experiments.parity_records import CheckResult
from experiments.spec import LeverSetting
from experiments.tasks import Outputs, Task
from experiments.values import digest_of, unlike
from levers.base import OFF
from levers.policy import ParityClass

NAME = "rollback"

MOST_REPEATS = 8
"""Plain processes at most: an output that changes in one process of four stays unseen in 10 %."""


def check(bench: Bench) -> CheckResult:
    """Compare the switched-off lever with its absence.

    Raises:
        ProcessFailed: a process failed.
    """
    off = _off(bench)
    plain = bench.digests("ref", ())
    switched = bench.digests("ref", off)
    unsteady: list[str] = []
    if changing([plain, switched]):
        again = [bench.digests("ref", (), repeat=k) for k in (1, 2)]
        unsteady = changing([plain, *again])
        if unsteady:
            unsteady = _asked_again(bench, off, [plain, *again], [switched])
    return judge(plain, switched, unsteady)


def ahead(bench: Bench) -> tuple[Task, ...]:
    """The processes that :func:`check` will ask for, unless an output differs."""
    return (*bench.digest_tasks("ref", ()), *bench.digest_tasks("ref", _off(bench)))


def _off(bench: Bench) -> tuple[LeverSetting, ...]:
    return (LeverSetting(lever=bench.lever.name, setting=OFF),)


def _asked_again(
    bench: Bench,
    off: tuple[LeverSetting, ...],
    plain: list[Outputs],
    switched: list[Outputs],
) -> list[str]:
    """The outputs that the plain process does not repeat, after as many repeats as a doubt needs.

    An output is in doubt while no process with the switch at off gave what a plain one gave.
    """
    for repeat in range(len(plain), MOST_REPEATS):
        unsteady = set(changing(plain))
        doubted = [key for key in plain[0].digests if key not in unsteady]
        if all(_shared(key, plain, switched) for key in doubted):
            break
        plain.append(bench.digests("ref", (), repeat=repeat))
        switched.append(bench.digests("ref", off, repeat=repeat))
    unsteady = set(changing(plain))
    first = plain[0].digests
    return [
        key
        for key in first
        if key in unsteady
        or (first[key] != switched[0].digests.get(key) and _shared(key, plain, switched))
    ]


def _shared(key: str, plain: list[Outputs], switched: list[Outputs]) -> bool:
    """Whether some process of either kind gave the same bits."""
    seen = {one.digests.get(key) for one in plain}
    return any(one.digests.get(key) in seen for one in switched)


def judge(plain: Outputs, switched: Outputs, unsteady: list[str]) -> CheckResult:
    """Whether every output that repeats itself is the same with the switch at off."""
    keys = sorted({*plain.digests, *switched.digests} - set(unsteady))
    if not keys:
        return empty(NAME, "no output of the plain process repeats itself: nothing to compare")
    if plain.inputs_digest != switched.inputs_digest:
        inputs = unlike(plain.inputs_digest, switched.inputs_digest)
        return empty(NAME, f"the processes did not work on the same inputs ({inputs})")
    apart = [key for key in keys if plain.digests.get(key) != switched.digests.get(key)]
    left_out = f"; {len(unsteady)} that do not repeat themselves left out" if unsteady else ""
    return CheckResult(
        name=NAME,
        status="lever-defective" if apart else "passed",
        passed=len(keys) - len(apart),
        total=len(keys),
        worst=f"{len(apart)} outputs differ with the kill switch at off" if apart else "",
        where=apart[0] if apart else "",
        detail=f"kill switch at off against a process without the lever{left_out}",
        strongest=ParityClass.BROKEN if apart else ParityClass.BYTE_EXACT,
        digest=digest_of(str(sorted(switched.digests.items()))),
    )
