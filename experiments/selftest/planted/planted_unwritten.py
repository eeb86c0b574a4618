"""A lever that leaves the last row of its output as it found it."""

from __future__ import annotations

from typing import Any

from experiments.selftest.launches import Product
from experiments.selftest.planted_lever import Planted


def all_but_the_last(out_NN: Any, right_NN: Any) -> None:
    """Write every row except one."""
    out_NN[:-1].copy_(right_NN[:-1])


LEVER = Planted("planted_unwritten", Product("unwritten", change=all_but_the_last))
