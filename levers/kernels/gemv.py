"""Matrix products of a decode step with what stands before and after them, in one launch each.

Shapes: N rows of activations (1 to 32), E outputs, C inputs. :func:`fused_linear` computes
``y = act(norm(x + delta) @ weight.T)``: the residual add and RMS norm are optional, ``act`` is
nothing or SwiGLU over gate and up halves. Weights are ``[E, C]`` (``[2 E, C]`` for SwiGLU, gate
rows first) in the activations' dtype; :mod:`.gemv_triton` says how another format is loaded. A
stored form of its own takes part by a method ``fused_linear(x_NC, norm, swiglu)`` of the same
meaning (see :class:`FusedMatrix`); one that has none is multiplied by its ``linear``.

Numerics: the sum is rounded to the stream's dtype, as the residual add rounds; everything after it
is in fp32 (for a ``tl.dot`` a normed row is the sum of two bf16 numbers, 16 bits of mantissa),
rounded once at the end, where the separate operations round the norm, the product, the activation
and the gated product. On the device's tensor cores bf16
products are exact and summed in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from levers.kernels.gemv_tilings import LARGEST_ROWS, Tiling, tiling

Counters = tuple[Tensor, Tensor]
"""Partial sums (fp32) and tickets (int32, zero between launches) of products with split inputs."""


@dataclass(frozen=True, slots=True)
class Norm:
    """What stands before a product.

    Attributes:
        weight_C: the norm's weight.
        eps: added to the mean square.
        delta_NC: added to the stream first; None where the stream is complete.
        sum_NC: where the sum is written; None without an addend.
    """

    weight_C: Tensor
    eps: float
    delta_NC: Tensor | None = None
    sum_NC: Tensor | None = None


@runtime_checkable
class FusedMatrix(Protocol):
    """A stored matrix with a fused product of its own."""

    def fused_linear(self, x_NC: Tensor, norm: Norm | None, swiglu: bool) -> Tensor:
        """As :func:`fused_linear`."""


class Scratch:
    """Room for the partial sums of split products, for all launches of one stream.

    Room that was outgrown is kept: captured launches go on to use it. With ``once`` it is for one
    launch alone; its tickets are zeroed in front of it, also in each replay of a graph.
    """

    def __init__(self, *, once: bool = False) -> None:
        self._once = once
        self._held: dict[torch.device, Counters] = {}
        self._outgrown: list[Counters] = []

    def room(self, device: torch.device, partials: int, tiles: int) -> Counters:
        """Buffers of at least this size; those of several launches grow outside a capture alone.

        Raises:
            RuntimeError: a graph is being captured and there is no room yet: the zeroed tickets
                would be part of the graph.
        """
        held = self._held.get(device)
        if held is None or held[0].numel() < partials or held[1].numel() < tiles:
            capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
            if capturing and not self._once:
                raise RuntimeError(
                    f"no room for {partials} partial sums inside a capture; run the step once "
                    "eagerly before it is captured"
                )
            self._outgrown += [held] if held is not None else []
            held = (
                torch.empty(partials, dtype=torch.float32, device=device),
                torch.zeros(tiles, dtype=torch.int32, device=device),
            )
            self._held[device] = held
        return held


def fused_linear(
    x_NC: Tensor,
    weight_EC: Tensor,
    norm: Norm | None = None,
    *,
    swiglu: bool = False,
    scratch: Scratch | None = None,
    tile: Tiling | None = None,
) -> Tensor:
    """``act(norm(x + delta) @ weight.T)``, ``[N, E]``; ``norm.sum_NC`` is written.

    Args:
        x_NC: up to 32 rows on CUDA.
        weight_EC: weights, gate rows before up rows where ``swiglu``.
        norm: what is done before the product.
        swiglu: whether ``silu(gate) * up`` follows it.
        scratch: of the stream's launches, where the tiling splits the inputs; without it each
            launch makes and zeroes room of its own.
        tile: the tiling of the launch; by default that of the table.

    Raises:
        ValueError: more rows than the kernels take.
        TypeError: a dtype whose range is too small for a stream that is not normed yet (fp16), or
            weights of another dtype.
    """
    if x_NC.device.type != "cuda":
        return plain_linear(x_NC, weight_EC, norm, swiglu=swiglu)
    from levers.kernels.gemv_launch import launch

    if x_NC.dtype is torch.float16 or weight_EC.dtype is not x_NC.dtype:
        raise TypeError(f"{x_NC.dtype} rows and {weight_EC.dtype} weights; use bf16 or fp32")
    count, outputs = x_NC.shape[0], weight_EC.shape[0] // (2 if swiglu else 1)
    if not 1 <= count <= LARGEST_ROWS:
        raise ValueError(f"{count} rows; the kernels take 1 to {LARGEST_ROWS}")
    chosen = tile or tiling(count, outputs, x_NC.shape[1], swiglu=swiglu, norm=norm is not None)
    return launch(x_NC, weight_EC, norm, swiglu, scratch or Scratch(once=True), chosen)


def plain_linear(
    x_NC: Tensor, weight_EC: Tensor, norm: Norm | None, *, swiglu: bool = False
) -> Tensor:
    """The same function in PyTorch: fp32 from the rounded sum on, rounded at the end."""
    stream_NC = x_NC if norm is None or norm.delta_NC is None else x_NC + norm.delta_NC
    if norm is not None and norm.sum_NC is not None:
        norm.sum_NC.copy_(stream_NC)
    wide = torch.promote_types(x_NC.dtype, torch.float32)
    x = stream_NC.to(wide)
    if norm is not None:
        x = torch.rms_norm(x, (x.shape[-1],), norm.weight_C.to(wide), norm.eps)
    y = x @ weight_EC.to(wide).T
    if swiglu:
        gate, up = y.chunk(2, dim=-1)
        y = torch.nn.functional.silu(gate) * up
    return y.to(x_NC.dtype)
