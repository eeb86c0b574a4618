"""A lever that leaves out 10 % of the real work for the same result."""

from __future__ import annotations

from experiments.selftest.launches import ROUNDS, Product
from experiments.selftest.planted_lever import Planted

LEVER = Planted("planted_fast_10", Product("fast", rounds=ROUNDS * 90 // 100))
