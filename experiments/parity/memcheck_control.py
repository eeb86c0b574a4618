"""The planted fault of the memory check: a Triton kernel that writes past the end of its tensor."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit  # type: ignore[untyped-decorator]
def _write_past_end(pointer: tl.tensor, elements: tl.constexpr) -> None:
    """Store one value one element beyond the last."""
    tl.store(pointer + elements, 1.0)


def launch(tensor: Tensor) -> None:
    """Write past the end of the tensor, on purpose."""
    _write_past_end[(1,)](tensor, tensor.numel())
