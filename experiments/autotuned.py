"""What autotuners chose in the processes of a run: a winner that changes may change the bits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from experiments.records import Sample
from experiments.values import Scalar
from experiments.witness_records import Witness

AUTOTUNED = "autotune."
"""Beginning of the facts that name an autotuner's winner; the kernel and its key follow."""


def winners(facts: Mapping[str, Scalar]) -> dict[str, str]:
    """The winners among a process's facts, by kernel and key."""
    return {
        name.removeprefix(AUTOTUNED): str(value)
        for name, value in facts.items()
        if name.startswith(AUTOTUNED)
    }


def changing_winners(witnesses: Iterable[Witness], samples: Iterable[Sample]) -> tuple[str, ...]:
    """Each kernel for which processes of one arm chose differently, with what they chose.

    The oracle is left out: it is not what ships.
    """
    seen: dict[tuple[str, str], set[str]] = {}
    processes = [
        *((one.arm, one.facts) for one in witnesses),
        *((one.arm, one.telemetry) for one in samples),
    ]
    for arm, facts in processes:
        if arm != "oracle":
            for kernel, winner in winners(facts).items():
                seen.setdefault((arm, kernel), set()).add(winner)
    return tuple(
        f"{arm} {kernel}: {' | '.join(sorted(found))}"
        for (arm, kernel), found in sorted(seen.items())
        if len(found) > 1
    )
