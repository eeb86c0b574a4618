"""Op cases of the compiled block: what the compiler fuses between two attentions, against fp64.

Shapes: B samples, N rows of all of them, C channels, D head dim.

The chain is the row-wise work of a block with its roundings: LayerNorm and modulation, the norm of
the heads, GELU in its tanh form, the gated residual. Products with weights are not the compiler's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from levers.base import OpCase

EPS = 1e-6
REORDERINGS = 3
"""Of a packed batch, whose row gradients are sums in bf16, one row after the other."""


def chain(
    x_NC: Tensor,
    shift_BC: Tensor,
    scale_BC: Tensor,
    gate_BC: Tensor,
    batch_map_N: Tensor | None,
    heads: int,
) -> Tensor:
    """``x + gate * gelu(head_norm(LN(x) * (1 + scale) + shift))``, ``[N, C]``.

    The rows of a packed batch are gathered by ``batch_map``; those of a dense one are spread.
    """
    wide = torch.promote_types(x_NC.dtype, torch.float32)
    shape = x_NC.shape if batch_map_N is not None else (len(gate_BC), -1, x_NC.shape[-1])

    def rows(mod_BC: Tensor) -> Tensor:
        return mod_BC[:, None] if batch_map_N is None else mod_BC[batch_map_N]

    normed = F.layer_norm(x_NC.to(wide), x_NC.shape[-1:], eps=EPS).view(shape)
    h_NC = (normed * rows(1 + scale_BC) + rows(shift_BC)).view(x_NC.shape).to(x_NC.dtype)
    h_NHD = h_NC.view(len(h_NC), heads, -1).to(wide)
    turned = F.normalize(h_NHD, dim=-1) * h_NHD.shape[-1] ** 0.5
    h_NC = F.gelu(turned.flatten(1).to(x_NC.dtype), approximate="tanh")
    return x_NC + (h_NC.view(shape) * rows(gate_BC)).view(x_NC.shape)


@functools.cache
def compiled_chain(mode: str, *, dynamic: bool) -> Callable[..., Tensor]:
    """The chain as the lever compiles a block."""
    made: Callable[..., Tensor] = torch.compile(chain, dynamic=dynamic, mode=mode)
    return made


@dataclass(frozen=True, slots=True)
class ChainCase:
    """One shape and kind of values."""

    lengths: tuple[int, ...]
    packed: bool
    channels: int
    heads: int
    dtype: torch.dtype
    device: str
    values: Callable[[Tensor], Tensor]

    def inputs(self, seed: int) -> tuple[Tensor, ...]:
        """x, shift, scale, gate and the gradient of the result."""
        generator = torch.Generator().manual_seed(seed)
        rows, c = sum(self.lengths), self.channels
        shapes = [(rows, c), *[(len(self.lengths), c)] * 3, (rows, c)]
        drawn = [torch.randn(shape, generator=generator) for shape in shapes]
        drawn[0] = self.values(drawn[0])
        return tuple(one.to(self.device, self.dtype) for one in drawn)

    def outputs(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The result and the gradients of the four inputs."""
        return tuple(torch.empty_like(one) for one in (inputs[0], *inputs[:4]))

    def run(
        self,
        function: Callable[..., Tensor],
        inputs: tuple[Tensor, ...],
        order: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Forward and backward; the rows of a packed batch in another order, if one is given."""
        x, *rows, upstream = inputs
        batch_map = self._batch_map()
        if order is not None and batch_map is not None:
            x, upstream, batch_map = x[order], upstream[order], batch_map[order]
        leaves = [one.detach().requires_grad_() for one in (x, *rows)]
        out = function(*leaves, batch_map, self.heads)
        x_grad, *grads = torch.autograd.grad(out, leaves, upstream)
        back = slice(None) if order is None else order.argsort()
        return (out.detach()[back], x_grad[back], *grads)

    def _batch_map(self) -> Tensor | None:
        if not self.packed:
            return None
        lengths = torch.tensor(self.lengths)
        return torch.arange(len(lengths)).repeat_interleave(lengths).to(self.device)

    def _order(self, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randperm(sum(self.lengths), generator=generator).to(self.device)

    def into(self, function: Callable[[], Callable[..., Tensor]], seed: int | None = None) -> Any:
        """Forward and backward into the outputs that are given; a seed gives another order."""

        def write(inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
            order = None if seed is None else self._order(seed)
            for found, output in zip(self.run(function(), inputs, order), outputs, strict=True):
                output.copy_(found)

        return write

    def truth(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The same in fp64, not rounded in between."""
        return self.run(chain, tuple(one.double() for one in inputs))

    def case(self, name: str, mode: str) -> OpCase:
        """As the op check takes it."""
        return OpCase(
            name=name,
            inputs=self.inputs,
            outputs=self.outputs,
            reference=self.into(lambda: chain),
            candidate=self.into(lambda: compiled_chain(mode, dynamic=self.packed)),
            truth=self.truth,
            elements=sum(self.lengths) * self.channels,
            reorderings=tuple(
                self.into(lambda: chain, seed) for seed in range(REORDERINGS * self.packed)
            ),
        )


VALUES: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda x: x,
    "mean 100 sigma": lambda x: x + 100.0,
    "one loud channel": lambda x: torch.cat([1e3 * x[:, :1], x[:, 1:]], dim=1),
}


def op_cases(setting: str, device: str, *, packed: bool) -> Sequence[OpCase]:
    """Rows in bf16, as autocast leaves them.

    On CUDA at the width of the 1.3 B model; elsewhere narrow, since each shape is compiled.
    """
    cuda = torch.device(device).type == "cuda"
    mode = "default" if setting == "on" else setting
    channels, heads = (1536, 12) if cuda else (64, 2)
    longest = 4096 if cuda else 255
    ragged = ((longest, 1, longest // 3), (longest, 7)) if packed else ((longest, longest),)
    return [
        ChainCase(lengths, packed, channels, heads, torch.bfloat16, device, values).case(
            f"row chain, {' + '.join(map(str, lengths))} rows of {channels}, bfloat16, {name}",
            mode,
        )
        for lengths in ragged
        for name, values in VALUES.items()
    ]
