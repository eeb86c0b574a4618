"""A lever whose path never ends."""

from __future__ import annotations

import time
from typing import Any

from experiments.selftest.launches import Product
from experiments.selftest.planted_lever import Planted


def hang(out_NN: Any, right_NN: Any) -> None:
    """Sleep for a day."""
    del out_NN, right_NN
    time.sleep(86_400)


LEVER = Planted("planted_hanging", Product("hanging", change=hang))
