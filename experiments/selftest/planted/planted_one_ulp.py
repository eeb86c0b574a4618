"""A lever that claims to be byte-exact and is one unit in the last place off."""

from __future__ import annotations

from typing import Any

from experiments.selftest.launches import Product
from experiments.selftest.planted_lever import EXACT, Planted


def one_ulp_up(out_NN: Any, right_NN: Any) -> None:
    """Write the next larger value of each."""
    above_NN = right_NN.new_full((), float("inf"))
    out_NN.copy_(right_NN.nextafter(above_NN))


LEVER = Planted("planted_one_ulp", Product("one-ulp", change=one_ulp_up), EXACT)
