"""A lever that halves the scratch memory and costs 5 % of the rate, which it guards."""

from __future__ import annotations

from experiments.selftest.launches import SCRATCH_BYTES, Product, in_halves
from experiments.selftest.planted_lever import Planted
from experiments.selftest.workload import MEMORY, RATE
from levers.policy import GatingPolicy, Guard

MEMORY_WANTED = GatingPolicy(primaries=(MEMORY,), guards=(Guard(RATE, 0.01),))

LEVER = Planted(
    "planted_memory",
    Product("small", cost=1.05, scratch_bytes=SCRATCH_BYTES // 2, change=in_halves),
    MEMORY_WANTED,
)
