"""A lever that runs another plan at the same speed: nothing is left to measure."""

from __future__ import annotations

from experiments.selftest.launches import Product, in_halves
from experiments.selftest.planted_lever import Planted

LEVER = Planted("planted_same", Product("same", change=in_halves))
