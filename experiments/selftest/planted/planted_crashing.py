"""A lever whose path raises."""

from __future__ import annotations

from typing import Any

from experiments.selftest.launches import Product
from experiments.selftest.planted_lever import Planted


def crash(out_NN: Any, right_NN: Any) -> None:
    """End the process with an error."""
    del out_NN, right_NN
    raise RuntimeError("the candidate cannot")


LEVER = Planted("planted_crashing", Product("crashing", change=crash))
