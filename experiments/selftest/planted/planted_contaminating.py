"""A lever that leaves a variable and a flag of torch changed."""

from __future__ import annotations

import os

from experiments.selftest.launches import Product
from experiments.selftest.planted_lever import Planted


def contaminate() -> None:
    """Change what every later user of this process would see."""
    import torch

    os.environ["PLANTED_CONTAMINATION"] = "1"
    torch.backends.cuda.matmul.allow_tf32 = True


LEVER = Planted("planted_contaminating", Product("contaminating"), at_enable=contaminate)
