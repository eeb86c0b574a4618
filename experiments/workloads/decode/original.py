"""The original path of each decode site: plain PyTorch operations, which the levers replace.

Shape suffixes: N tokens of a step or prompt, B slots of a step, C hidden size, H query heads, K KV
heads, P = H + 2K packed heads, D head dimension, I intermediate size, J = 2I, E projected width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from experiments.workloads.decode.operations import rms_norm, rotate
from levers.kernels.split_kv import Backend, PagedKV, SplitPlan, Workspace, decode_attention

if TYPE_CHECKING:
    from experiments.workloads.decode.engine import DecodeEngine
    from experiments.workloads.decode.model import Attend, Block, Matrix, Rope


def add_norm(x_NC: Tensor, delta_NC: Tensor, weight_C: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The sum, rounded to the stream's dtype, and its RMS norm: ``[N, C]`` each."""
    sum_NC = x_NC + delta_NC
    return sum_NC, rms_norm(sum_NC, weight_C, eps)


def qk_norm_rope(
    packed_NPD: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    rope: Rope,
    heads: tuple[int, int],
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised (Qwen3) and turned ``q_NHD k_NKD``, and ``v_NKD`` as a view of the projection."""
    h, k = heads
    q_NHD, k_NKD, v_NKD = torch.split(packed_NPD, [h, k, k], dim=1)
    if norms is not None:
        q_NHD = rms_norm(q_NHD, norms[0], eps)
        k_NKD = rms_norm(k_NKD, norms[1], eps)
    return rotate(q_NHD, *rope), rotate(k_NKD, *rope), v_NKD


def swiglu(gate_up_NJ: Tensor) -> Tensor:
    """``silu(gate) * up``, ``[N, I]`` (Shazeer 2020)."""
    gate_NI, up_NI = gate_up_NJ.chunk(2, dim=-1)
    return functional.silu(gate_NI) * up_NI


def linear(x_NC: Tensor, weight: Matrix, name: str) -> Tensor:
    """``x @ weight.T``, ``[N, E]``; a stored form that is no tensor multiplies by itself."""
    del name
    if isinstance(weight, Tensor):
        return functional.linear(x_NC, weight)
    return weight.linear(x_NC)


def keep(name: str, tensor_EC: Tensor) -> Tensor:
    """A weight matrix as it is loaded."""
    del name
    return tensor_EC


def block(
    parts: Block, x_NC: Tensor, delta_NC: Tensor | None, rope: Rope, attend: Attend
) -> tuple[Tensor, Tensor]:
    """One block, from the other sites; the MLP's output is handed on before it is added."""
    sites, layer, eps = parts.sites, parts.weights, parts.config.rms_norm_eps
    if delta_NC is None:
        normed_NC = rms_norm(x_NC, layer.input_norm_C, eps)
    else:
        x_NC, normed_NC = sites.add_norm(x_NC, delta_NC, layer.input_norm_C, eps)
    count = x_NC.shape[0]
    h, k = parts.heads
    packed_NE = sites.linear(normed_NC, layer.qkv_EC, "qkv")
    packed_NPD = packed_NE.view(count, h + 2 * k, parts.config.head_dim)
    qkv = sites.qk_norm_rope(packed_NPD, layer.qk_norms, rope, parts.heads, eps)
    attended_NE = attend(parts.index, *qkv).reshape(count, -1)
    projected_NC = sites.linear(attended_NE, layer.o_CE, "o")
    x_NC, normed_NC = sites.add_norm(x_NC, projected_NC, layer.post_norm_C, eps)
    act_NI = sites.swiglu(sites.linear(normed_NC, layer.gate_up_JC, "gate_up"))
    return x_NC, sites.linear(act_NI, layer.down_CI, "down")


class Attention:
    """Our split-KV attention of one query token a sequence, by one backend."""

    def __init__(self, backend: Backend) -> None:
        self.ran: Backend = backend

    def __call__(
        self, q_BHD: Tensor, kv: PagedKV, plan: SplitPlan, out_BHD: Tensor, workspace: Workspace
    ) -> int:
        """Write ``out_BHD`` and return the number of splits that were launched."""
        return decode_attention(q_BHD, kv, plan, out_BHD, workspace, self.ran)


class Step:
    """How a decode step is run: replayed from a CUDA graph, or eagerly."""

    def __init__(self, *, captured: bool) -> None:
        self._captured = captured

    def __call__(self, engine: DecodeEngine, count: int) -> Callable[[], Tensor]:
        """A function that decodes the first ``count`` slots by one token."""
        return engine.captured(count) if self._captured else engine.eager(count)
