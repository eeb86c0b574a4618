"""Check 9, ``rollback``: the kill switch at ``off`` against a process that never saw the lever.

Both are held to the reference's own determinism: outputs that the plain process does not repeat
itself prove nothing and are left out. A difference in the others means that the lever is defective:
switching it off does not bring back what was there.
"""

from __future__ import annotations

from experiments.parity.bench import Bench
from experiments.parity.determinism import changing
from experiments.parity.results import empty
from experiments.records import CheckResult
from experiments.spec import LeverSetting
from experiments.tasks import Outputs
from experiments.values import digest_of
from levers.base import OFF
from levers.policy import ParityClass

NAME = "rollback"


def check(bench: Bench) -> CheckResult:
    """Compare the switched-off lever with its absence.

    Raises:
        ProcessFailed: a process failed.
    """
    off = (LeverSetting(lever=bench.lever.name, setting=OFF),)
    plain = bench.digests("ref", ())
    switched = bench.digests("ref", off)
    unsteady: list[str] = []
    if changing([plain, switched]):
        again = [bench.digests("ref", (), repeat=k) for k in (1, 2)]
        unsteady = changing([plain, *again])
    return judge(plain, switched, unsteady)


def judge(plain: Outputs, switched: Outputs, unsteady: list[str]) -> CheckResult:
    """Whether every output that repeats itself is the same with the switch at off."""
    keys = sorted({*plain.digests, *switched.digests} - set(unsteady))
    if not keys:
        return empty(NAME, "no output of the plain process repeats itself: nothing to compare")
    if plain.inputs_digest != switched.inputs_digest:
        return empty(NAME, "the processes did not work on the same inputs")
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
