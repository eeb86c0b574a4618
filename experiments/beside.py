"""The levers that are asked for in both arms of a comparison (``ab --with``).

A lever is then measured in the state in which its users run it, without first having verdicts on
the others. They are in the record as the comparison's stack, as the default-ON ones are.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.prepare import Comparison
from experiments.spec import LeverSetting
from experiments.stack.prepare import facts_of, refuse, typed
from levers import catalog
from levers.base import claims
from levers.errors import LeverConflict

OPTION = "--with"


def asked(texts: Sequence[str], comparison: Comparison) -> tuple[LeverSetting, ...]:
    """The levers of ``--with``, checked against the comparison that they are to stand in.

    Raises:
        UsageError: one is unknown, off or cannot run here, is the lever under test, or shares a
            site with another without saying so.
    """
    found = typed(texts, OPTION)
    spec = comparison.spec
    if spec.lever in (one.lever for one in found):
        raise LeverConflict(
            f"{spec.lever} is the lever under test, and cannot be on in both arms",
            cure=f"leave it out of {OPTION}",
        )
    declared = [catalog.get(one.lever) for one in found]
    refuse(found, declared, facts_of(comparison.workload, spec.parameters, comparison.device))
    claims([*declared, comparison.lever])
    return found
