"""The cases of the op check of the fused norm and RoPE: forward and backward against fp64.

A case's inputs are ``packed, gamma_q, gamma_k, turn, grad_q, grad_k, grad_v`` in self-attention,
and the same behind ``q`` in cross-attention, where ``packed`` holds keys and values alone and
``turn`` nothing; else ``turn`` is a cosine and a sine for each pair of channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from levers.base import OpCase
from levers.kernels.qk_norm_rope import qk_norm_rope

Tensors = tuple[Tensor, ...]
Call = Callable[[Tensor | None, Tensor, Tensor, Tensor, Tensor | None], Tensors]
Fill = Callable[[Tensor], Tensor]
"""Turns standard normal fp32 rows ``[rows, parts, H, D]`` into the case's."""

CPU_HEADS, CPU_DIM = 2, 32
CUDA_HEADS, CUDA_DIM = 12, 128

ROWS: dict[str, tuple[int, int]] = {
    "1": (1, 1),
    "ragged 601 + 1 + 33": (635, 635),
    "2222": (2222, 2222),
}
"""Self-attention: queries and keys of the same rows."""

CROSS: dict[str, tuple[int, int]] = {"cross 1 x 77": (1, 77), "cross 700 x 2056": (700, 2056)}
"""Cross-attention: no positions, other keys."""

FARTHEST = 63.0
"""Largest voxel coordinate (a 64^3 grid), in radians a unit at the first frequency."""


def published(
    q_NHD: Tensor | None,
    packed: Tensor,
    gamma_q_HD: Tensor,
    gamma_k_HD: Tensor,
    phases_NP: Tensor | None,
) -> Tensors:
    """The original: ``F.normalize`` in fp32, rounded, times complex phases, rounded."""
    *first, k, v = packed.unbind(1)
    q = first[0] if q_NHD is None else q_NHD
    return _published(q, gamma_q_HD, phases_NP), _published(k, gamma_k_HD, phases_NP), v


def _published(x_NHD: Tensor, gamma_HD: Tensor, phases_NP: Tensor | None) -> Tensor:
    wide = x_NHD.to(torch.promote_types(x_NHD.dtype, torch.float32))
    normed = F.normalize(wide, dim=-1) * gamma_HD * math.sqrt(x_NHD.shape[-1])
    normed = normed.to(x_NHD.dtype)
    if phases_NP is None:
        return normed
    pairs = torch.unflatten(normed.to(wide.dtype), -1, (-1, 2)).contiguous()
    turned = torch.view_as_complex(pairs) * phases_NP[:, None, :]
    return torch.view_as_real(turned).flatten(-2).to(x_NHD.dtype)


def _phases(turn: Tensor) -> Tensor | None:
    return torch.view_as_complex(turn) if turn.numel() else None


def _normal(x: Tensor) -> Tensor:
    return x


def _offset(x: Tensor) -> Tensor:
    """A mean of 30 standard deviations: nearly parallel rows, gradients that cancel."""
    return x + 30.0


def _spread(x: Tensor) -> Tensor:
    """One channel of a head a thousand times the others."""
    x[..., 0] *= 1e3
    return x


def _subnormal(x: Tensor) -> Tensor:
    """Norms far below the clamp, in part below the smallest normal number (1.2e-38)."""
    return x * 1e-39


def _zero_rows(x: Tensor) -> Tensor:
    """Every second row is zero: its norm is clamped."""
    x[::2] = 0.0
    return x


def _nonfinite(x: Tensor) -> Tensor:
    """A NaN in the first row and an infinity in the last, each in one head."""
    x[0, :, 0, 3], x[-1, :, -1, 2] = math.nan, math.inf
    return x


@dataclass(frozen=True)
class QkCase:
    """One case; its methods are the callables of an :class:`levers.base.OpCase`.

    What is turned is self-attention, with queries, keys and values in one projection.
    """

    rows: tuple[int, int]
    turned: bool
    fill: Fill
    dtype: torch.dtype
    device: str
    heads: int
    dim: int

    def inputs(self, seed: int) -> Tensors:
        """Drawn on the CPU so that every device gets the same."""
        generator = torch.Generator().manual_seed(seed)
        draw = partial(torch.randn, generator=generator)
        n, m = self.rows
        shapes = [(n, 3)] if self.turned else [(n, 1), (m, 2)]
        *apart, packed = (
            self._place(self.fill(draw(*shape, self.heads, self.dim))) for shape in shapes
        )
        gammas = [1 + 0.2 * draw(self.heads, self.dim) for _ in "qk"]
        angles = FARTHEST * torch.rand(n, self.dim // 2, generator=generator)
        turn = torch.stack((angles.cos(), angles.sin()), -1)[: n if self.turned else 0]
        grads = [self._place(draw(rows, self.heads, self.dim)) for rows in (n, m, m)]
        placed = (x.to(self.device) for x in (*gammas, turn))
        return (*(q[:, 0] for q in apart), packed, *placed, *grads)

    def _place(self, x: Tensor) -> Tensor:
        return x.to(self.dtype).to(self.device)

    def results_like(self, inputs: Tensors) -> Tensors:
        """Room for the forward's queries and keys; values would be compared with themselves."""
        return tuple(map(torch.empty_like, inputs[-3:-1]))

    def gradients_like(self, inputs: Tensors) -> Tensors:
        """Room for the gradients of queries, keys, values and gammas."""
        return (*map(torch.empty_like, inputs[-3:]), *map(torch.empty_like, inputs[-6:-4]))

    def forward(self, call: Call, inputs: Tensors, outputs: Tensors) -> None:
        """Queries and keys."""
        found = called(call, inputs[:-4], inputs[-4])
        for out, one in zip(outputs, found[:2], strict=True):
            out.copy_(one)

    def backward(self, call: Call, inputs: Tensors, outputs: Tensors) -> None:
        """The gradients, as autograd computes them."""
        for out, gradient in zip(outputs, self.gradients(call, inputs), strict=True):
            out.copy_(gradient)

    def gradients(self, call: Call, inputs: Tensors) -> Tensors:
        """Of queries, keys, values and gammas; those of packed rows taken apart."""
        leaves = tuple(x.detach().requires_grad_() for x in inputs[:-4])
        results = called(call, leaves, inputs[-4])
        *apart, dpacked, dgamma_q, dgamma_k = torch.autograd.grad(results, leaves, inputs[-3:])
        return (*apart, *dpacked.unbind(1), dgamma_q, dgamma_k)

    def backward_reversed(self, call: Call, inputs: Tensors, outputs: Tensors) -> None:
        """The same gradients from the rows in reverse order: another order of gamma's sums."""
        rows, gammas, others = inputs[:-6], inputs[-6:-4], inputs[-4:]
        flipped = (*(x.flip(0) for x in rows), *gammas, *(x.flip(0) for x in others))
        *of_rows, dgamma_q, dgamma_k = self.gradients(call, flipped)
        found = (*(x.flip(0) for x in of_rows), dgamma_q, dgamma_k)
        for out, gradient in zip(outputs, found, strict=True):
            out.copy_(gradient)

    def forward_truth(self, inputs: Tensors) -> Tensors:
        """The original in fp64."""
        wide = tuple(x.double() for x in inputs)
        return called(published, wide[:-4], wide[-4])[:2]

    def backward_truth(self, inputs: Tensors) -> Tensors:
        """The original's gradients in fp64."""
        return self.gradients(published, tuple(x.double() for x in inputs))

    def forward_nonfinite(self, inputs: Tensors) -> Tensors:
        """Where the true results are not finite."""
        return tuple(~torch.isfinite(x) for x in self.forward_truth(inputs))


def called(call: Call, leaves: Tensors, turn: Tensor) -> Tensors:
    """The operation on a case's tensors: rows, gammas, turns."""
    *apart, packed, gamma_q, gamma_k = leaves
    return call(apart[0] if apart else None, packed, gamma_q, gamma_k, _phases(turn))


def forward_and_backward(name: str, case: QkCase, *, backward: bool = True) -> list[OpCase]:
    """The forward's case and, where values are finite, the backward's."""
    elements = sum(case.rows) * case.heads * case.dim
    forward = OpCase(
        name=f"forward {name}",
        inputs=case.inputs,
        outputs=case.results_like,
        reference=partial(case.forward, published),
        candidate=partial(case.forward, qk_norm_rope),
        truth=case.forward_truth,
        masks=None if backward else case.forward_nonfinite,
        elements=elements,
    )
    if not backward:
        return [forward]
    return [
        forward,
        OpCase(
            name=f"backward {name}",
            inputs=case.inputs,
            outputs=case.gradients_like,
            reference=partial(case.backward, published),
            candidate=partial(case.backward, qk_norm_rope),
            truth=case.backward_truth,
            elements=elements,
            reorderings=(partial(case.backward_reversed, published),),
        ),
    ]


def op_cases(device: str) -> Sequence[OpCase]:
    """All cases for a device."""
    cuda = torch.device(device).type == "cuda"
    heads, dim = (CUDA_HEADS, CUDA_DIM) if cuda else (CPU_HEADS, CPU_DIM)
    make = partial(QkCase, device=device, heads=heads, dim=dim)
    bf16 = torch.bfloat16
    cases: list[OpCase] = []
    for turned, shapes in ((True, ROWS), (False, {**CROSS, "2222": ROWS["2222"]})):
        for label, rows in shapes.items():
            name = f"{label}, {'turned' if turned else 'not turned'}, bfloat16"
            cases += forward_and_backward(name, make(rows, turned, _normal, bf16))
    few = ROWS["ragged 601 + 1 + 33"]
    for dtype in (torch.float16, torch.float32):
        name = f"ragged, {dtype}".replace("torch.", "")
        cases += forward_and_backward(name, make(few, True, _normal, dtype))
    odd = partial(QkCase, device=device, heads=3, dim=40)
    cases += forward_and_backward("3 heads of 40, bfloat16", odd(few, True, _normal, bf16))
    for label, fill in (("large mean", _offset), ("one large channel", _spread)):
        cases += forward_and_backward(f"{label}, bfloat16", make(few, True, fill, bf16))
    for label, fill in (("subnormal", _subnormal), ("zero rows", _zero_rows)):
        cases += forward_and_backward(f"{label}, bfloat16", make(few, True, fill, bf16))
    wild = make(few, True, _nonfinite, bf16)
    return (*cases, *forward_and_backward("NaN and Inf, bfloat16", wild, backward=False))
