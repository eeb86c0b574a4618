"""A lever that is 3 % faster by the virtual clock."""

from __future__ import annotations

from experiments.selftest.launches import Product, in_halves
from experiments.selftest.planted_lever import Planted

LEVER = Planted("planted_fast_3", Product("fast", cost=0.97, change=in_halves))
