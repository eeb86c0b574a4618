"""A lever whose result is wrong in one row by one percent."""

from __future__ import annotations

from typing import Any

from experiments.selftest.launches import Product
from experiments.selftest.planted_lever import Planted


def one_row(out_NN: Any, right_NN: Any) -> None:
    """Spoil the fourth row."""
    out_NN.copy_(right_NN)
    out_NN[3] *= 1.01


LEVER = Planted("planted_one_row", Product("one-row", change=one_row))
