"""Plain PyTorch behind the published signatures of the attention packages.

flash-attn 2.8.3, FlashAttention-3's wheels, flash-attn-4 4.0.0b36, and PyTorch's operators as of
2.11 and 2.13. Each fake notes its calls.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

Calls = list[tuple[str, dict[str, Any]]]


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """``[L, H, D]``: output and natural log-sum-exp ``[H, L]``."""
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v), scores.logsumexp(-1)


def pieces(x: Tensor, cu: Tensor | None) -> list[Tensor]:
    return list(x) if cu is None else list(x.split(cu.diff().tolist()))


def plain_forward(q, k, v, cu_q, cu_k, scale):  # type: ignore[no-untyped-def]
    """Packed or dense, as a flash attention: output and log-sum-exp."""
    rows = zip(pieces(q, cu_q), pieces(k, cu_k), pieces(v, cu_k), strict=True)
    found = [softmax_attention(*row, scale) for row in rows]
    if cu_q is None:
        return torch.stack([out for out, _ in found]), torch.stack([lse for _, lse in found])
    return torch.cat([out for out, _ in found]), torch.cat([lse for _, lse in found], dim=1)


def plain_backward(grad, q, k, v, lse, cu_q, cu_k, scale):  # type: ignore[no-untyped-def]
    """Gradients, from the log-sum-exp that the forward left, as a flash attention does."""
    rows = zip(
        *(pieces(x, cu) for x, cu in ((grad, cu_q), (q, cu_q), (k, cu_k), (v, cu_k))),
        list(lse) if cu_q is None else lse.split(cu_q.diff().tolist(), dim=1),
        strict=True,
    )
    found = []
    for dy, a, b, c, kept in rows:
        p = (torch.einsum("qhd,khd->hqk", a, b) * scale - kept[..., None]).exp()
        dp = torch.einsum("qhd,khd->hqk", dy, c)
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * scale
        dq, dk = torch.einsum("hqk,khd->qhd", ds, b), torch.einsum("hqk,qhd->khd", ds, a)
        found.append((dq, dk, torch.einsum("hqk,qhd->khd", p, dy)))
    join = torch.stack if cu_q is None else torch.cat
    return tuple(join(list(one)) for one in zip(*found, strict=True))


def fake_fa2(calls: Calls) -> ModuleType:
    """flash-attn 2.8.3's four functions, by their published parameters."""
    module = ModuleType("flash_attn.flash_attn_interface")

    def _flash_attn_forward(
        q,
        k,
        v,
        dropout_p,
        softmax_scale,
        causal,
        window_size_left,
        window_size_right,
        softcap,
        alibi_slopes,
        return_softmax,
    ):  # type: ignore[no-untyped-def]
        assert (dropout_p, causal, window_size_left, window_size_right, softcap) == (
            0,
            0,
            -1,
            -1,
            0,
        )
        calls.append(("fa2 dense", {"v": v}))
        out, lse = plain_forward(q, k, v, None, None, softmax_scale)
        return out, lse, None, torch.zeros(2)

    def _flash_attn_varlen_forward(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p,
        softmax_scale,
        causal,
        window_size_left=-1,
        window_size_right=-1,
    ):  # type: ignore[no-untyped-def]
        assert (dropout_p, causal, window_size_left, window_size_right) == (0, 0, -1, -1)
        calls.append(("fa2 packed", {"v": v, "longest": (max_seqlen_q, max_seqlen_k)}))
        out, lse = plain_forward(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale)
        return out, lse, None, torch.zeros(2)

    def _flash_attn_backward(
        dout,
        q,
        k,
        v,
        out,
        softmax_lse,
        dq,
        dk,
        dv,
        dropout_p,
        softmax_scale,
        causal,
        window_size_left,
        window_size_right,
        softcap,
        alibi_slopes,
        deterministic,
        rng_state=None,
    ):  # type: ignore[no-untyped-def]
        calls.append(("fa2 dense backward", {"rng": rng_state}))
        found = plain_backward(dout, q, k, v, softmax_lse, None, None, softmax_scale)
        for room, one in zip((dq, dk, dv), found, strict=True):
            room.copy_(one)

    def _flash_attn_varlen_backward(
        dout,
        q,
        k,
        v,
        out,
        softmax_lse,
        dq,
        dk,
        dv,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p,
        softmax_scale,
        causal,
        window_size_left,
        window_size_right,
        softcap,
        alibi_slopes,
        deterministic,
        rng_state=None,
    ):  # type: ignore[no-untyped-def]
        assert dropout_p == 0
        assert not deterministic
        calls.append(("fa2 packed backward", {"rng": rng_state}))
        found = plain_backward(
            dout, q, k, v, softmax_lse, cu_seqlens_q, cu_seqlens_k, softmax_scale
        )
        for room, one in zip((dq, dk, dv), found, strict=True):
            room.copy_(one)

    for one in (
        _flash_attn_forward,
        _flash_attn_varlen_forward,
        _flash_attn_backward,
        _flash_attn_varlen_backward,
    ):
        setattr(module, one.__name__, one)
    return module


def fake_fa3(calls: Calls) -> ModuleType:
    module = ModuleType("flash_attn_interface")

    def _flash_attn_forward(
        q,
        k,
        v,
        *,
        cu_seqlens_q=None,
        cu_seqlens_k=None,
        max_seqlen_q=None,
        max_seqlen_k=None,
        softmax_scale=None,
        causal=False,
    ):  # type: ignore[no-untyped-def]
        calls.append(("fa3", {"v": v}))
        out, lse = plain_forward(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale)
        return out, lse, torch.tensor([]), torch.tensor([])

    module._flash_attn_forward = _flash_attn_forward  # type: ignore[attr-defined]
    return module


def fake_fa4(calls: Calls) -> ModuleType:
    module = ModuleType("flash_attn.cute.interface")

    def _flash_attn_fwd(
        q,
        k,
        v,
        *,
        cu_seqlens_q=None,
        cu_seqlens_k=None,
        max_seqlen_q=None,
        max_seqlen_k=None,
        softmax_scale=None,
        causal=False,
        return_lse=False,
    ):  # type: ignore[no-untyped-def]
        assert return_lse
        calls.append(("fa4", {"v": v}))
        out, lse = plain_forward(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale)
        return out, lse, None, None, None

    def _flash_attn_bwd(
        q,
        k,
        v,
        out,
        dout,
        lse,
        softmax_scale=None,
        causal=False,
        *,
        cu_seqlens_q=None,
        cu_seqlens_k=None,
        max_seqlen_q=None,
        max_seqlen_k=None,
    ):  # type: ignore[no-untyped-def]
        calls.append(("fa4 backward", {}))
        return plain_backward(dout, q, k, v, lse, cu_seqlens_q, cu_seqlens_k, softmax_scale)

    module._flash_attn_fwd = _flash_attn_fwd  # type: ignore[attr-defined]
    module._flash_attn_bwd = _flash_attn_bwd  # type: ignore[attr-defined]
    return module


def fake_aten(calls: Calls) -> SimpleNamespace:
    """PyTorch's operators (2.11 and 2.13), by position."""

    def flash(q, k, v, cu_q, cu_k, max_q, max_k, dropout, causal, debug, *, scale):  # type: ignore[no-untyped-def]
        calls.append(("torch-flash", {"v": v}))
        out, lse = plain_forward(q, k, v, cu_q, cu_k, scale)
        return out, lse, torch.zeros(2), torch.zeros(0), None

    def flash_backward(
        grad, q, k, v, out, lse, cu_q, cu_k, max_q, max_k, dropout, causal, rng, unused, *, scale
    ):  # type: ignore[no-untyped-def]
        return plain_backward(grad, q, k, v, lse, cu_q, cu_k, scale)

    def cudnn(q, k, v, bias, compute_lse, dropout, causal, debug, *, scale):  # type: ignore[no-untyped-def]
        assert compute_lse
        calls.append(("cudnn", {"v": v}))
        rows = (one.transpose(1, 2) for one in (q, k, v))
        out, lse = plain_forward(*rows, None, None, scale)
        return out.transpose(1, 2), lse, None, None, 0, 0, torch.zeros(()), torch.zeros(()), None

    def cudnn_backward(
        grad,
        q,
        k,
        v,
        out,
        lse,
        seed,
        offset,
        bias,
        cu_q,
        cu_k,
        max_q,
        max_k,
        dropout,
        causal,
        *,
        scale,
    ):  # type: ignore[no-untyped-def]
        assert (max_q, max_k) == (q.shape[2], k.shape[2])
        rows = (one.transpose(1, 2) for one in (grad, q, k, v))
        return tuple(one.transpose(1, 2) for one in plain_backward(*rows, lse, None, None, scale))

    return SimpleNamespace(
        _flash_attention_forward=flash,
        _flash_attention_backward=flash_backward,
        _scaled_dot_product_cudnn_attention=cudnn,
        _scaled_dot_product_cudnn_attention_backward=cudnn_backward,
    )
