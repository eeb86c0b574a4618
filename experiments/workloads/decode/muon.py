"""Muon for the matrices and AdamW for the rest: few steps have to be enough on a CPU.

Muon (Jordan 2024) replaces each matrix's momentum by its nearest orthogonal matrix, found by five
Newton-Schulz steps with the coefficients of that publication.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic iteration (Jordan 2024)."""
MOMENTUM = 0.95


def orthogonalised(gradient: Tensor, steps: int = 5) -> Tensor:
    """A matrix with the singular vectors of ``gradient`` and singular values near 1."""
    a, b, c = NEWTON_SCHULZ
    x: Tensor = gradient / (gradient.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T.contiguous() if tall else x


class Optimiser:
    """One object for both rules; ``step(scale)`` multiplies every learning rate by ``scale``."""

    def __init__(
        self, named: Mapping[str, Tensor], matrix_lr: float = 0.02, other_lr: float = 3e-3
    ) -> None:
        embeddings = ("embed_tokens", "lm_head")
        self._matrices = [
            (tensor, torch.zeros_like(tensor))
            for name, tensor in named.items()
            if tensor.ndim == 2 and not any(part in name for part in embeddings)
        ]
        mine = {id(tensor) for tensor, _ in self._matrices}
        rest = [tensor for tensor in named.values() if id(tensor) not in mine]
        self._adam = torch.optim.AdamW(rest, lr=other_lr, betas=(0.9, 0.95), weight_decay=0.0)
        self._matrix_lr, self._other_lr = matrix_lr, other_lr

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """Apply the gradients and clear them."""
        for group in self._adam.param_groups:
            group["lr"] = self._other_lr * scale
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        for tensor, momentum in self._matrices:
            if tensor.grad is None:
                continue
            momentum.lerp_(tensor.grad, 1 - MOMENTUM)
            update = orthogonalised(tensor.grad.lerp(momentum, MOMENTUM))
            stretch = max(1.0, tensor.shape[0] / tensor.shape[1]) ** 0.5
            tensor.mul_(1 - 0.01 * self._matrix_lr * scale).add_(
                update, alpha=-self._matrix_lr * scale * stretch
            )
            tensor.grad = None
