"""The two attentions that PyTorch ships for CUDA: its flash-attention 2 and cuDNN's.

``scaled_dot_product_attention`` ends in a view, whose node hides which kernel ran; so the operators
below it are called, forward and backward, inside a Function of our own.

cuDNN's operator takes one shape a call: packed samples of different lengths run one after the
other, and their outputs are joined by one copy. PyTorch's own variable-length attention holds a
cuDNN path that it switches off itself (``torch/nn/attention/varlen.py``, ``_should_use_cudnn``),
which is why it is not used here. A plan is built for each new length, in a tenth of a second or
so: fixed lengths pay once, fresh lengths at every step pay always. It takes no single key.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from levers.errors import BadParameter
from levers.kernels.attn_backend import Cut, State, Three, run, run_backward

NO_DROPOUT = 0.0
KEPT = 3
"""Tensors that one cuDNN call keeps: log-sum-exp, seed and offset of the generator."""


def _scale(q: Tensor) -> float:
    return float(q.shape[-1] ** -0.5)


class TorchFlash:
    """PyTorch's flash-attention 2, packed or dense, without the copies of its front door."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, cut: Cut) -> tuple[Tensor, State]:
        """Output, log-sum-exp and the generator's two tensors."""
        lengths = (cut.cu_q, cut.cu_k, cut.longest_q, cut.longest_k)
        out, *state, _ = torch.ops.aten._flash_attention_forward(
            q, k, v, *lengths, NO_DROPOUT, False, False, scale=_scale(q)
        )
        return out, tuple(state)

    def backward(
        self,
        grad: Tensor,
        inputs: Three,
        out: Tensor,
        state: State,
        cut: Cut,
    ) -> Three:
        """Gradients of q, k and v."""
        lse, seed, offset = state
        lengths = (cut.cu_q, cut.cu_k, cut.longest_q, cut.longest_k)
        dq, dk, dv = torch.ops.aten._flash_attention_backward(
            grad, *inputs, out, lse, *lengths, NO_DROPOUT, False, seed, offset, scale=_scale(grad)
        )
        return dq, dk, dv


class Cudnn:
    """cuDNN's attention: one dense call, or one call a sample."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, cut: Cut) -> tuple[Tensor, State]:
        """Output and what each call keeps, call by call."""
        if min(cut.keys) == 1:
            raise BadParameter(
                "cuDNN's attention takes no sample of one key", cure="use fa2 or fa4"
            )
        if cut.dense:
            return _cudnn_forward(q, k, v)
        parts = zip(
            q.split_with_sizes(cut.queries),
            k.split_with_sizes(cut.keys),
            v.split_with_sizes(cut.keys),
            strict=True,
        )
        calls = [_cudnn_forward(*(one[None] for one in part)) for part in parts]
        state = tuple(tensor for _, kept in calls for tensor in kept)
        return torch.cat([out[0] for out, _ in calls]), state

    def backward(
        self,
        grad: Tensor,
        inputs: Three,
        out: Tensor,
        state: State,
        cut: Cut,
    ) -> Three:
        """Gradients of q, k and v."""
        if cut.dense:
            return _cudnn_backward(grad, inputs, out, state)
        q, k, v = inputs
        rows = (cut.queries, cut.queries, cut.queries, cut.keys, cut.keys)
        split = [one.split_with_sizes(n) for one, n in zip((grad, out, q, k, v), rows, strict=True)]
        calls = [
            _cudnn_backward(dy[None], (a[None], b[None], c[None]), y[None], state[at : at + KEPT])
            for at, (dy, y, a, b, c) in zip(
                range(0, len(state), KEPT), zip(*split, strict=True), strict=True
            )
        ]
        dq, dk, dv = (torch.cat([one[0] for one in each]) for each in zip(*calls, strict=True))
        return dq, dk, dv


def _cudnn_forward(q_BLHD: Tensor, k_BLHD: Tensor, v_BLHD: Tensor) -> tuple[Tensor, State]:
    heads_first = (one.transpose(1, 2) for one in (q_BLHD, k_BLHD, v_BLHD))
    out, lse, _, _, _, _, seed, offset, _ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        *heads_first, None, True, NO_DROPOUT, False, False, scale=_scale(q_BLHD)
    )
    return out.transpose(1, 2), (lse, seed, offset)


def _cudnn_backward(grad_BLHD: Tensor, inputs: Three, out_BLHD: Tensor, state: State) -> Three:
    queries, keys = inputs[0].shape[1], inputs[1].shape[1]
    given = [one.transpose(1, 2) for one in (grad_BLHD, *inputs, out_BLHD)]
    no_bias = no_offsets = None
    dq, dk, dv = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        *given,
        *state,
        no_bias,
        no_offsets,
        no_offsets,
        queries,
        keys,
        NO_DROPOUT,
        False,
        scale=_scale(grad_BLHD),
    )
    return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)


TORCH_FLASH, CUDNN = TorchFlash(), Cudnn()


class TorchFlashAttention(torch.autograd.Function):
    """Attention by PyTorch's flash-attention 2."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, cut: Cut) -> Tensor:
        """``[N, H, D]``."""
        return run(ctx, TORCH_FLASH, q, k, v, cut)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Gradients of q, k and v."""
        return run_backward(ctx, TORCH_FLASH, grads[0])


class CudnnAttention(torch.autograd.Function):
    """Attention by cuDNN."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, cut: Cut) -> Tensor:
        """``[N, H, D]``."""
        return run(ctx, CUDNN, q, k, v, cut)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Gradients of q, k and v."""
        return run_backward(ctx, CUDNN, grads[0])
