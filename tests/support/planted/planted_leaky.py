"""A lever that leaves a variable and a torch flag changed."""

from __future__ import annotations

import os

from tests.support.planted_lever import Planted, named


def leak() -> None:
    import torch

    os.environ["PLANTED_LEAK"] = "1"
    torch.backends.cuda.matmul.allow_tf32 = True


LEVER = Planted("planted_leaky", lambda launch: named(launch, "kernel=leaky"), at_enable=leak)
