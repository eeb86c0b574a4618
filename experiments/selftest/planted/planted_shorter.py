"""A lever that looks 20 % faster and gives a shorter answer."""

from __future__ import annotations

from experiments.selftest.launches import Product, in_halves
from experiments.selftest.planted_lever import Planted

LEVER = Planted("planted_shorter", Product("shorter", cost=0.8, steps=12, change=in_halves))
