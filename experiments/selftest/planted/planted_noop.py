"""A lever that changes nothing: the plan that runs is the reference's."""

from __future__ import annotations

from experiments.selftest.launches import Product
from experiments.selftest.planted_lever import Planted

LEVER = Planted("planted_noop", Product())
