"""Head norm, rotary positions and the split of the packed projection as one operation.

Shapes: N tokens, H query heads, K KV heads, P = H + 2K packed heads, D head dimension. Roundings
and sums are those of the separate operations, on CUDA in one Triton launch. In PyTorch queries and
keys, which lie side by side, are normed and turned together, in half the calls.
"""

from __future__ import annotations

import torch
from torch import Tensor

Norms = tuple[Tensor, Tensor]
Rope = tuple[Tensor, Tensor]


class QkNormRope:
    """The fused operation.

    Attributes:
        ran: what the last call launched.
    """

    ran = ""

    def __call__(
        self,
        packed_NPD: Tensor,
        norms: Norms | None,
        rope: Rope,
        heads: tuple[int, int],
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """``q_NHD k_NKD`` normed (where there are norms) and turned, and ``v_NKD``.

        Raises:
            ValueError: the projection does not hold H + 2K heads, or D is odd.
        """
        h, k = heads
        if packed_NPD.shape[1] != h + 2 * k or packed_NPD.shape[2] % 2:
            raise ValueError(
                f"a projection of {tuple(packed_NPD.shape)} does not hold {h} + 2 x {k} heads "
                "of even width"
            )
        if packed_NPD.device.type == "cuda":
            from levers.kernels.decode_qk_rope_triton import qk_norm_rope_triton

            found = qk_norm_rope_triton(packed_NPD, norms, rope, heads, eps)
            self.ran = "triton qk_norm_rope"
            return found
        found = qk_norm_rope_plain(packed_NPD, norms, rope, heads, eps)
        self.ran = "torch qk_norm_rope together"
        return found


def qk_norm_rope_plain(
    packed_NPD: Tensor, norms: Norms | None, rope: Rope, heads: tuple[int, int], eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The same in PyTorch: queries and keys are views of one ``[N, H + K, D]``."""
    h, k = heads
    x_NXD, v_NKD = torch.split(packed_NPD, [h + k, k], dim=1)
    if norms is not None:
        x_NXD = _normed(x_NXD, norms, h, eps)
    first, second = x_NXD.chunk(2, dim=-1)
    halves = torch.cat((-second, first), dim=-1)
    turned_NXD = (x_NXD * rope[0]).add_(halves.mul_(rope[1]))
    q_NHD, k_NKD = torch.split(turned_NXD, [h, k], dim=1)
    return q_NHD, k_NKD, v_NKD


def _normed(x_NXD: Tensor, norms: Norms, queries: int, eps: float) -> Tensor:
    """RMS norm of each head, each with its kind's weight, rounded once."""
    wide_NXD = x_NXD.to(torch.promote_types(x_NXD.dtype, torch.float32))
    scale_NX1 = torch.square(wide_NXD).mean(-1, keepdim=True).add_(eps).rsqrt_()
    normed_NXD = wide_NXD * scale_NX1
    normed_NXD[:, :queries].mul_(norms[0])
    normed_NXD[:, queries:].mul_(norms[1])
    return normed_NXD.to(x_NXD.dtype)
