"""A lever that gives one NaN where the reference is finite."""

from __future__ import annotations

from typing import Any

from experiments.selftest.launches import Product
from experiments.selftest.planted_lever import Planted


def one_nan(out_NN: Any, right_NN: Any) -> None:
    """Spoil one element."""
    out_NN.copy_(right_NN)
    out_NN[1, 2] = float("nan")


LEVER = Planted("planted_nan", Product("nan", change=one_nan))
