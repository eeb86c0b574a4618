"""RMS norm of each head of queries and keys, then rotary positions: one pass over memory each way.

Shapes: N query rows, M key rows (equal in self-attention), H heads, D head dim (even), P = D / 2
pairs. ``x`` stands for queries or keys. Queries, keys and values come packed in one projection
``[M, 3, H, D]``, or queries apart and keys and values packed in ``[M, 2, H, D]``.

The forward keeps the original's roundings: the norm in fp32, rounded to the rows' dtype, turned in
fp32, rounded again. The backward stays in fp32 until its result is rounded, where the original
rounds the gradient once more between the rotation and the norm. The gradients of the gammas are
sums over all rows, accumulated in fp32. The values pass through as the view that they are, so that
the backward, which is given their gradient too, can write the packed projection's gradient whole,
where autograd would stack its parts.

With ``n = max(|x|, 1e-12)``, ``xhat = x / n``, ``y = xhat * gamma * sqrt(D)``, ``dy`` the gradient
turned back and ``u = dy * gamma * sqrt(D)``: ``dx = (u - xhat * sum(u * xhat)) / n``, and ``dgamma
= sqrt(D) * sum(dy * xhat)`` over the rows. Where the norm is clamped it is a constant and the sum
drops out.

Sources: Zhang and Sennrich 2019 (RMS norm), Su et al. 2021 (RoPE); the clamp is that of
``torch.nn.functional.normalize``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SMALLEST_NORM = 1e-12
"""``torch.nn.functional.normalize``'s default clamp of the norm."""


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """fp32, or fp64 for fp64 rows."""
    return torch.promote_types(dtype, torch.float32)


def rows_contiguous(x_NHD: Tensor) -> Tensor:
    """The rows as they are where a head's channels lie side by side, else a copy."""
    return x_NHD if x_NHD.stride(-1) == 1 else x_NHD.contiguous()


def unpacked(q_NHD: Tensor | None, packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as views."""
    q = packed.select(1, 0) if q_NHD is None else q_NHD
    return q, packed.select(1, -2), packed.select(1, -1)


def check_shapes(
    q_NHD: Tensor | None,
    packed: Tensor,
    gamma_q_HD: Tensor,
    gamma_k_HD: Tensor,
    turn_NP2: Tensor | None,
) -> None:
    """Refuse what the kernels would read wrongly.

    Raises:
        ValueError: shapes or dtypes that do not belong together, with what was found.
    """
    parts = 3 if q_NHD is None else 2
    if packed.dim() != 4 or packed.shape[1] != parts:
        needed = f"[rows, {parts}, heads, head dim]"
        raise ValueError(f"these queries need {needed} packed: {_said(q_NHD, packed)}")
    rows, heads = packed.shape[0], packed.shape[2:]
    apart = q_NHD is not None and (q_NHD.shape[1:] != heads or q_NHD.dtype != packed.dtype)
    if apart or heads[1] % 2:
        found = _said(q_NHD, packed)
        raise ValueError(f"queries and keys need equal heads, an even head dim, one dtype: {found}")
    if gamma_q_HD.shape != heads or gamma_k_HD.shape != heads:
        gammas = f"{tuple(gamma_q_HD.shape)}, {tuple(gamma_k_HD.shape)}"
        raise ValueError(f"gammas {gammas} for {_said(q_NHD, packed)}")
    if turn_NP2 is None:
        return
    phases = (rows if q_NHD is None else q_NHD.shape[0], heads[1] // 2, 2)
    if turn_NP2.shape != phases or phases[0] != rows:
        found = f"{tuple(turn_NP2.shape)}, not {phases}, for {_said(q_NHD, packed)}"
        raise ValueError(f"phases {found}")


def _said(q_NHD: Tensor | None, packed: Tensor) -> str:
    """The shapes in words, for an error alone: writing them takes longer than checking them."""
    return f"q {None if q_NHD is None else tuple(q_NHD.shape)}, packed {tuple(packed.shape)}"


def turned(x_NHD: Tensor, turn_NP2: Tensor, sign: int) -> Tensor:
    """Adjacent pairs of channels turned by the angle (sign 1) or back (sign -1), in wide dtype.

    Run as it is, PyTorch's complex product is a single pass; a compiler is given real numbers, as
    it generates no code for complex ones.
    """
    if torch.compiler.is_compiling():
        cos_NP, sin_NP = turn_NP2[:, None, :, 0], sign * turn_NP2[:, None, :, 1]
        even, odd = x_NHD[..., 0::2], x_NHD[..., 1::2]
        pairs = (even * cos_NP - odd * sin_NP, even * sin_NP + odd * cos_NP)
        return torch.stack(pairs, -1).flatten(-2)
    numbers = torch.view_as_complex(torch.unflatten(x_NHD, -1, (-1, 2)).contiguous())
    turn_NP = torch.view_as_complex(turn_NP2.contiguous())[:, None]
    return torch.view_as_real(numbers * (turn_NP if sign > 0 else turn_NP.conj())).flatten(-2)


def forward_torch(x_NHD: Tensor, gamma_HD: Tensor, turn_NP2: Tensor | None) -> Tensor:
    """One of queries and keys with plain PyTorch, in the dtype it came in."""
    wide, root = x_NHD.to(wide_dtype(x_NHD.dtype)), x_NHD.shape[-1] ** 0.5
    norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).clamp_min(SMALLEST_NORM)
    normed = (wide / norm * (gamma_HD * root)).to(x_NHD.dtype)
    return (
        normed if turn_NP2 is None else turned(normed.to(wide.dtype), turn_NP2, 1).to(x_NHD.dtype)
    )


def backward_torch(
    x_NHD: Tensor, gamma_HD: Tensor, turn_NP2: Tensor | None, grad_NHD: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of the rows (in their dtype) and of gamma (wide) with plain PyTorch."""
    wide, root = x_NHD.to(wide_dtype(x_NHD.dtype)), x_NHD.shape[-1] ** 0.5
    norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    clamped, norm = norm <= SMALLEST_NORM, norm.clamp_min(SMALLEST_NORM)
    unit, grad = wide / norm, grad_NHD.to(wide.dtype)
    grad = grad if turn_NP2 is None else turned(grad, turn_NP2, -1)
    dgamma_HD = (grad * unit).sum(0) * root
    grad = grad * (gamma_HD * root)
    along = (grad * unit).sum(-1, keepdim=True).masked_fill(clamped, 0.0)
    return ((grad - unit * along) / norm).to(x_NHD.dtype), dgamma_HD


class FusedQkNormRope(torch.autograd.Function):
    """Norm and rotation of queries and keys; keeps what came in, and nothing else."""

    @staticmethod
    def forward(
        ctx: Any,
        q_NHD: Tensor | None,
        packed: Tensor,
        gamma_q_HD: Tensor,
        gamma_k_HD: Tensor,
        turn_NP2: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Contiguous queries and keys from rows with any row and head stride; a view of values."""
        ctx.save_for_backward(q_NHD, packed, gamma_q_HD, gamma_k_HD, turn_NP2)
        ctx.keeps_packed = True
        q, k, v = unpacked(q_NHD, packed)
        if packed.is_cuda:
            from levers.kernels.qk_norm_rope_triton import forward_triton

            return *forward_triton(q, k, gamma_q_HD, gamma_k_HD, turn_NP2), v
        q, k = forward_torch(q, gamma_q_HD, turn_NP2), forward_torch(k, gamma_k_HD, turn_NP2)
        return q, k, v

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor, Tensor, None]:
        """Gradients of the rows in their dtype, of the gammas in theirs."""
        q, packed, gamma_q, gamma_k, turn = ctx.saved_tensors
        if packed.is_cuda:
            from levers.kernels.qk_norm_rope_grad_triton import backward_triton

            computed = backward_triton(q, packed, gamma_q, gamma_k, turn, grads)
        else:
            computed = _backward_plain(q, packed, gamma_q, gamma_k, turn, grads)
        dq, dpacked, dgamma_q, dgamma_k = computed
        return dq, dpacked, dgamma_q.to(gamma_q.dtype), dgamma_k.to(gamma_k.dtype), None


def _backward_plain(
    q_NHD: Tensor | None,
    packed: Tensor,
    gamma_q_HD: Tensor,
    gamma_k_HD: Tensor,
    turn_NP2: Tensor | None,
    grads: tuple[Tensor, ...],
) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:
    q, k, _ = unpacked(q_NHD, packed)
    dq, dgamma_q = backward_torch(q, gamma_q_HD, turn_NP2, grads[0])
    dk, dgamma_k = backward_torch(k, gamma_k_HD, turn_NP2, grads[1])
    if q_NHD is None:
        return None, torch.stack((dq, dk, grads[2]), 1), dgamma_q, dgamma_k
    return dq, torch.stack((dk, grads[2]), 1), dgamma_q, dgamma_k


def qk_norm_rope(
    q_NHD: Tensor | None,
    packed: Tensor,
    gamma_q_HD: Tensor,
    gamma_k_HD: Tensor,
    phases_NP: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised and turned queries and keys, contiguous, and values: in the dtype they came in.

    Args:
        q_NHD: queries that come apart, or None where they are the first of the packed ones.
        packed: ``[N, 3, H, D]`` queries, keys and values, or ``[M, 2, H, D]`` keys and values; read
            in place, and the values returned are a view of it.
        gamma_q_HD: scale of the normalised queries.
        gamma_k_HD: scale of the normalised keys.
        phases_NP: unit complex numbers, or their cosines and sines ``[N, P, 2]``, or None where
            positions do not count. Complex ones are read as the pairs that they are, so that no
            operation on complex numbers is left. They need as many keys as queries.

    Raises:
        ValueError: shapes or dtypes that do not belong together.
    """
    turn_NP2 = _pairs(phases_NP)
    check_shapes(q_NHD, packed, gamma_q_HD, gamma_k_HD, turn_NP2)
    q_NHD = None if q_NHD is None else rows_contiguous(q_NHD)
    q, k, v = FusedQkNormRope.apply(  # type: ignore[no-untyped-call]
        q_NHD, rows_contiguous(packed), gamma_q_HD, gamma_k_HD, turn_NP2
    )
    return q, k, v


def _pairs(phases_NP: Tensor | None) -> Tensor | None:
    if phases_NP is None or not phases_NP.is_complex():
        return phases_NP
    return torch.view_as_real(phases_NP)
