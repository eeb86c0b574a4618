from __future__ import annotations

import itertools

from experiments.prepare import RunFacts
from experiments.stack.policy import policy_of
from levers import catalog
from levers.policy import ParityClass

FACTS = RunFacts("cuda", "decode", {"model": "random-0.6b", "quality": "off"}, ())
NAMES = ("fused_block", "mxfp4_weights", "cuda_graph")


def test_the_bar_of_a_set_is_that_of_its_weakest_claim_in_whatever_order() -> None:
    packed = catalog.get("mxfp4_weights").policy(FACTS)
    for order in itertools.permutations(NAMES):
        found = policy_of([catalog.get(name) for name in order], FACTS)
        assert (found.claims, found.tolerance) == (ParityClass.TOLERATED, packed.tolerance)
        assert found.near_tie_share == packed.near_tie_share == 1.0
        assert found.near_tie_gap_nat == packed.near_tie_gap_nat


def test_a_set_without_a_tolerated_lever_has_no_more_near_ties_than_each() -> None:
    found = policy_of([catalog.get(name) for name in ("cuda_graph", "fused_block")], FACTS)
    assert (found.claims, found.tolerance) == (ParityClass.LOSSLESS, None)
    assert found.near_tie_share == catalog.get("fused_block").policy(FACTS).near_tie_share
