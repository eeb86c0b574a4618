"""FlashAttention-4 (CuTe DSL): forward and backward from sm_90 on.

Each combination of head dim, dtype and packed or dense compiles for seconds at its first use; the
lengths are run-time values, so other lengths compile nothing. The functions used are those below
the package's autograd Functions, which have the names of FlashAttention-2's: a witness could not
tell them apart.

On the host a forward checks shapes, builds a key of some sixty values, allocates output and
log-sum-exp and launches one kernel; a backward launches three (row sums, the gradients, the
rounding of dq). Neither waits for the device. On capability 9 nothing of it can be handed in:
scheduler metadata exist for split keys alone and block tables from 257 samples on, with or without
``disable_scheduler_metadata``; ``num_splits`` is 1; and a given ``out``, ``lse``, ``dq``, ``dk`` or
``dv`` is checked where an absent one is allocated. The longest lengths are what it would otherwise
take for the sum of all.

Source: flash-attn-4 4.0.0b36 ``flash_attn/cute/interface.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from flash_attn.cute.interface import _flash_attn_bwd, _flash_attn_fwd
from torch import Tensor

from levers.kernels.attn_backend import Cut, State, Three, run, run_backward


class Fa4:
    """Forward and backward of FlashAttention-4."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, cut: Cut) -> tuple[Tensor, State]:
        """Output and log-sum-exp."""
        out, lse, *_ = _flash_attn_fwd(q, k, v, return_lse=True, **_options(q, cut))
        return out, (lse,)

    def backward(
        self,
        grad: Tensor,
        inputs: Three,
        out: Tensor,
        state: State,
        cut: Cut,
    ) -> Three:
        """Gradients of q, k and v."""
        dq, dk, dv = _flash_attn_bwd(*inputs, out, grad, *state, **_options(grad, cut))
        return dq, dk, dv


def _options(q: Tensor, cut: Cut) -> dict[str, Any]:
    options: dict[str, Any] = {"softmax_scale": float(q.shape[-1] ** -0.5), "causal": False}
    if not cut.dense:
        options |= {
            "cu_seqlens_q": cut.cu_q,
            "cu_seqlens_k": cut.cu_k,
            "max_seqlen_q": cut.longest_q,
            "max_seqlen_k": cut.longest_k,
        }
    return options


FA4 = Fa4()


class Fa4Attention(torch.autograd.Function):
    """Attention by FlashAttention-4."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, cut: Cut) -> Tensor:
        """``[N, H, D]``."""
        return run(ctx, FA4, q, k, v, cut)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Gradients of q, k and v."""
        return run_backward(ctx, FA4, grads[0])
