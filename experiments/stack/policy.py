"""The bar that levers have to pass together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from experiments.prepare import RunFacts
from levers.base import Lever
from levers.policy import GatingPolicy, ParityClass, Tolerance


def policy_of(declared: Sequence[Lever], facts: RunFacts) -> GatingPolicy:
    """The bar of the levers together: no stronger than the weakest claim among them.

    Of near-ties they may have what the one of them may that is allowed most, in whatever order they
    are named.
    """
    found = [lever.policy(facts) for lever in declared]
    claimed = demanded = ParityClass.BYTE_EXACT
    for policy in found:
        claimed, demanded = claimed.weaker(policy.claims), demanded.weaker(policy.demanded)
    tolerances = [policy.tolerance for policy in found]
    return dataclasses.replace(
        found[-1],
        claims=claimed,
        demands=demanded,
        strict_tokens=any(policy.strict_tokens for policy in found),
        near_tie_share=max(policy.near_tie_share for policy in found),
        near_tie_gap_nat=max(policy.near_tie_gap_nat for policy in found),
        tolerance=wider(tuple(one for one in tolerances if one is not None)),
    )


def wider(tolerances: Sequence[Tolerance]) -> Tolerance | None:
    """What the levers together may show: of each error the largest that one of them declares.

    None where none declares any.
    """
    if not tolerances:
        return None
    gradients = [one.gradient_error for one in tolerances if one.gradient_error is not None]
    return Tolerance(
        relative_error=max(one.relative_error for one in tolerances),
        reason="; ".join(dict.fromkeys(one.reason for one in tolerances)),
        gradient_error=max(gradients, default=None),
    )
