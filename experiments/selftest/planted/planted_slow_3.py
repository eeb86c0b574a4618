"""A byte-exact lever that is 3 % slower by the virtual clock, within its wide margin of 5 %."""

from __future__ import annotations

from experiments.selftest.launches import Product, in_halves
from experiments.selftest.planted_lever import Planted
from experiments.selftest.workload import RATE
from levers.policy import GatingPolicy, ParityClass

WIDE = GatingPolicy(primaries=(RATE,), claims=ParityClass.BYTE_EXACT, primary_margin=0.05)

LEVER = Planted("planted_slow_3", Product("slow", cost=1.03, change=in_halves), WIDE)
