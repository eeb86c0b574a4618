"""The Linears of the flow transformer, and the embedding of the time that is made of them.

Shapes: B samples, C channels.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.workloads.flow.precision import Precision
from experiments.workloads.flow.sites import Sites

TIME_DIM = 256
TIME_PERIOD = 10000.0


class Linear(nn.Module):
    """A Linear whose products follow the model's precision."""

    def __init__(self, inputs: int, outputs: int, precision: Precision, gain: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * (gain / math.sqrt(inputs)))
        self.bias = nn.Parameter(torch.randn(outputs) * 0.01)
        self.precision = precision

    def forward(self, x: Tensor) -> Tensor:
        """In the stream's dtype."""
        return self.precision.linear(x, self.weight, self.bias)


class BlockLinear(Linear):
    """A Linear of a block, which goes through the site of the Linears."""

    def __init__(
        self, inputs: int, outputs: int, precision: Precision, sites: Sites, gain: float = 1.0
    ) -> None:
        super().__init__(inputs, outputs, precision, gain)
        self.sites = sites

    def forward(self, x: Tensor) -> Tensor:
        """In the stream's dtype."""
        return self.sites.linear(x, self.weight, self.bias)


class TimeEmbedding(nn.Module):
    """Sinusoids of the time (scaled to 0..1000), then a two-layer MLP: ``[B, C]``."""

    def __init__(self, channels: int, precision: Precision) -> None:
        super().__init__()
        self.first = Linear(TIME_DIM, channels, precision)
        self.second = Linear(channels, channels, precision)
        self.precision = precision

    def forward(self, t_B: Tensor) -> Tensor:
        """From times in 0..1."""
        half = TIME_DIM // 2
        step = torch.arange(half, device=t_B.device, dtype=self.precision.norm)
        frequencies = torch.exp(-math.log(TIME_PERIOD) * step / half)
        angles = 1000 * t_B.to(self.precision.norm)[:, None] * frequencies
        waves = torch.cat([angles.cos(), angles.sin()], dim=-1)
        out: Tensor = self.second(F.silu(self.first(waves)))
        return out
