"""A lever whose ``disable`` leaves its own launch in the site."""

from __future__ import annotations

from experiments.selftest.launches import Product
from experiments.selftest.planted_lever import Planted

LEVER = Planted("planted_leaky", Product("leaky"), restores=False)
