"""A lever whose path wants more memory than any machine has."""

from __future__ import annotations

from experiments.selftest.launches import BEYOND_ANY_MACHINE, Product
from experiments.selftest.planted_lever import Planted

LEVER = Planted("planted_oom", Product("hungry", scratch_bytes=BEYOND_ANY_MACHINE))
