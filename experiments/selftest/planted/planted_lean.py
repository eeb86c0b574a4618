"""A lever that does with some memory what the reference may need too much for."""

from __future__ import annotations

from experiments.selftest.launches import Product, in_halves
from experiments.selftest.planted_lever import Planted

LEVER = Planted("planted_lean", Product("lean", change=in_halves))
