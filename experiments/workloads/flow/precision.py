"""Which dtype each part runs in: the published mixed precision, its CPU form, and truth.

Published (``bf16``): fp32 parameters under bf16 autocast. A Linear multiplies and returns bf16; the
residual stream, the modulation and their gradients are bf16; LayerNorm and what is computed from it
up to the next Linear are fp32.

CPU (``fp32``): the same, but a Linear and the attention multiply in fp32 and their result is
rounded to bf16. A CPU without bf16 instructions multiplies bf16 at about 1 GFLOP/s and fp32 at 50:
with bf16 products the step would measure that missing instruction and nothing else. Everything
row-wise, and above all the gathered modulation and the accumulation of its gradient, stays bf16 as
published.

Truth: fp64 throughout, no autocast.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Precision:
    """The dtypes of one run of the model.

    Attributes:
        stream: residual stream and modulation.
        norm: LayerNorm, RMS norm, RoPE and the loss.
        matmul: operands of the matrix products.
        autocast: whether PyTorch's autocast makes the casts of the matrix products.
    """

    stream: torch.dtype
    norm: torch.dtype
    matmul: torch.dtype
    autocast: bool

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """``x @ weight.T + bias``, multiplied in ``matmul`` and returned in ``stream``."""
        if self.autocast:
            return F.linear(x, weight, bias)
        return F.linear(x.to(self.matmul), weight, bias).to(self.stream)

    def context(self, device_type: str) -> contextlib.AbstractContextManager[object]:
        """The context that the forward and the loss run in."""
        if self.autocast:
            return torch.autocast(device_type, dtype=self.matmul)
        return contextlib.nullcontext()


TRUTH = Precision(torch.float64, torch.float64, torch.float64, autocast=False)

PRECISIONS: dict[str, Precision] = {
    "bf16": Precision(torch.bfloat16, torch.float32, torch.bfloat16, autocast=True),
    "fp32": Precision(torch.bfloat16, torch.float32, torch.float32, autocast=False),
}
