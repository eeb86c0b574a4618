"""FlashAttention-2's forward and backward, and FlashAttention-3's forward before that backward.

Both kernels take strides, so that keys and values may be views of one packed projection. Both leave
the same thing for a backward: the natural log-sum-exp of the scaled scores, fp32, ``[H, N]`` packed
or ``[B, H, L]`` dense. So FA2's backward can follow FA3's forward, which matters since FA3 is
published in wheels without a backward.

Sources: flash-attn 2.8.3 ``flash_attn/flash_attn_interface.py``; flash-attention ``hopper/
flash_attn_interface.py`` (the functions used here take no dropout and no window at these values).
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from flash_attn.flash_attn_interface import (
    _flash_attn_backward,
    _flash_attn_forward,
    _flash_attn_varlen_backward,
    _flash_attn_varlen_forward,
)
from torch import Tensor

from levers.kernels.attn_backend import Cut, State, Three, run, run_backward

NO_DROPOUT = 0.0
ALL = -1
"""A window without an end."""
NO_SOFTCAP = 0.0


def _scale(q: Tensor) -> float:
    return float(q.shape[-1] ** -0.5)


def fa2_backward(grad: Tensor, inputs: Three, out: Tensor, state: State, cut: Cut) -> Three:
    """FA2's backward from output and log-sum-exp; dq is summed by atomics, so bits may vary."""
    lse, random_state = state
    dq, dk, dv = (torch.empty(one.shape, dtype=one.dtype, device=one.device) for one in inputs)
    given = (grad, *inputs, out, lse, dq, dk, dv)
    rest = (NO_DROPOUT, _scale(grad), False, ALL, ALL, NO_SOFTCAP, None, False, random_state)
    if cut.dense:
        _flash_attn_backward(*given, *rest)
    else:
        lengths = (cut.cu_q, cut.cu_k, cut.longest_q, cut.longest_k)
        _flash_attn_varlen_backward(*given, *lengths, *rest)
    return dq, dk, dv


class Fa2:
    """Forward and backward of FlashAttention-2."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, cut: Cut) -> tuple[Tensor, State]:
        """Output, log-sum-exp and the generator's state, which is not used without dropout."""
        if cut.dense:
            rest = (NO_DROPOUT, _scale(q), False, ALL, ALL, NO_SOFTCAP, None, False)
            out, lse, _, random_state = _flash_attn_forward(q, k, v, *rest)
        else:
            lengths = (cut.cu_q, cut.cu_k, cut.longest_q, cut.longest_k)
            out, lse, _, random_state = _flash_attn_varlen_forward(
                q, k, v, *lengths, NO_DROPOUT, _scale(q), False
            )
        return out, (lse, random_state)

    def backward(
        self,
        grad: Tensor,
        inputs: Three,
        out: Tensor,
        state: State,
        cut: Cut,
    ) -> Three:
        """Gradients of q, k and v."""
        return fa2_backward(grad, inputs, out, state, cut)


class Fa3:
    """FlashAttention-3's forward with FlashAttention-2's backward."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, cut: Cut) -> tuple[Tensor, State]:
        """Output and log-sum-exp; there is no generator."""
        fa3 = importlib.import_module("flash_attn_interface")
        lengths = {} if cut.dense else _lengths(cut)
        out, lse, *_ = fa3._flash_attn_forward(
            q, k, v, softmax_scale=_scale(q), causal=False, **lengths
        )
        return out, (lse, None)

    def backward(
        self,
        grad: Tensor,
        inputs: Three,
        out: Tensor,
        state: State,
        cut: Cut,
    ) -> Three:
        """Gradients of q, k and v."""
        return fa2_backward(grad, inputs, out, state, cut)


def _lengths(cut: Cut) -> dict[str, Any]:
    return {
        "cu_seqlens_q": cut.cu_q,
        "cu_seqlens_k": cut.cu_k,
        "max_seqlen_q": cut.longest_q,
        "max_seqlen_k": cut.longest_k,
    }


FA2, FA3 = Fa2(), Fa3()


class Fa2Attention(torch.autograd.Function):
    """Attention by FlashAttention-2."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, cut: Cut) -> Tensor:
        """``[N, H, D]``."""
        return run(ctx, FA2, q, k, v, cut)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Gradients of q, k and v."""
        return run_backward(ctx, FA2, grads[0])


class Fa3Attention(torch.autograd.Function):
    """Attention by FlashAttention-3 forward, FlashAttention-2 backward."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, cut: Cut) -> Tensor:
        """``[N, H, D]``."""
        return run(ctx, FA3, q, k, v, cut)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Gradients of q, k and v."""
        return run_backward(ctx, FA3, grads[0])
