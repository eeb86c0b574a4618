"""A lever that does 20 % more real work for the same result."""

from __future__ import annotations

from experiments.selftest.launches import ROUNDS, Product
from experiments.selftest.planted_lever import STRICT, Planted

LEVER = Planted("planted_slow_20", Product("slow", rounds=ROUNDS * 120 // 100), STRICT)
