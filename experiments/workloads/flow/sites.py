"""The sites of the flow transformer, and the watcher that sees which backward ran.

A lever changes ``launch`` of a site; the block calls through :class:`Sites`, and never keeps the
callable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from experiments.workloads.flow import original
from experiments.workloads.flow.layout import PackedLayout
from experiments.workloads.flow.names import (
    AFFINE_NORM,
    ATTENTION,
    BLOCK,
    BROADCAST,
    CU_SEQLENS,
    GATE_RESIDUAL,
    LINEAR,
    MICRO_BATCHES,
    MLP,
    MLP_HIDDEN,
    MODULATE,
    QK_NORM_ROPE,
    RESIDUAL_NORM,
)
from experiments.workloads.flow.precision import Precision
from levers.base import Site

S = TypeVar("S")


def call_block(block: Any, *arguments: Any) -> Any:
    """Run a block as it is: eagerly."""
    return block(*arguments)


class Sites:
    """The slots of the step; each call goes through the slot's callable of the moment.

    While ``watch`` holds axes, each site counts, for each of them, what autograd node its result
    came from, at the time that node's backward runs.
    """

    def __init__(self, precision: Precision, attn: str) -> None:
        attention = (
            original.VarlenAttention(self.cu_seqlens)
            if attn == "varlen"
            else original.SdpaAttention(precision)
        )
        launches: dict[str, Any] = {
            BROADCAST: original.broadcast,
            MODULATE: original.Modulate(self.broadcast, precision),
            GATE_RESIDUAL: original.GateResidual(self.broadcast),
            QK_NORM_ROPE: original.QkNormRope(precision),
            ATTENTION: attention,
            MLP: original.Mlp(self.mlp_hidden, self.linear, precision),
            MLP_HIDDEN: original.MlpHidden(self.linear),
            AFFINE_NORM: original.AffineNorm(precision),
            RESIDUAL_NORM: original.ResidualNorm(
                self.gate_residual, self.modulate, self.affine_norm
            ),
            LINEAR: precision.linear,
            CU_SEQLENS: original.cu_seqlens,
            BLOCK: call_block,
            MICRO_BATCHES: original.micro_batches,
        }
        self.by_name = {name: Site(name, launch) for name, launch in launches.items()}
        self.watch: Sequence[str] = ()
        self._original = launches

    def is_original(self, name: str) -> bool:
        """Whether the site still holds the callable that it was made with."""
        return bool(self.by_name[name].launch is self._original[name])

    def broadcast(self, mod_BC: Tensor, layout: PackedLayout) -> Tensor:
        """Each sample's row for each of its tokens: ``[N, C]``; or ``[B, 1, C]`` to be spread."""
        return self._call(BROADCAST, mod_BC, layout)

    def modulate(
        self, x_NC: Tensor, shift_BC: Tensor, scale_BC: Tensor, layout: PackedLayout
    ) -> tuple[Tensor, Tensor]:
        """LayerNorm and modulation, and the stream to go on with: ``[N, C]`` each.

        A stream that comes out of the norm lets both its gradients meet in the norm's backward.
        """
        normed_NC, on_NC = self._call_all(MODULATE, x_NC, shift_BC, scale_BC, layout)
        return normed_NC, on_NC

    def gate_residual(
        self, x_NC: Tensor, h_NC: Tensor, gate_BC: Tensor, layout: PackedLayout
    ) -> Tensor:
        """``x + h * gate``: ``[N, C]``."""
        return self._call(GATE_RESIDUAL, x_NC, h_NC, gate_BC, layout)

    def qk_norm_rope(
        self,
        q_NHD: Tensor | None,
        packed: Tensor,
        gamma_q: Tensor,
        gamma_k: Tensor,
        phases: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Normalised and turned queries and keys, and values.

        All three come packed, ``[N, 3, H, D]``, or queries apart and the others ``[M, 2, H, D]``. A
        packed projection that goes in whole lets its gradient come out whole.
        """
        q, k, v = self._call_all(QK_NORM_ROPE, q_NHD, packed, gamma_q, gamma_k, phases)
        return q, k, v

    def attention(
        self, q_NHD: Tensor, k_MHD: Tensor, v_MHD: Tensor, queries: PackedLayout, keys: PackedLayout
    ) -> Tensor:
        """``[N, H, D]``."""
        return self._call(ATTENTION, q_NHD, k_MHD, v_MHD, queries, keys)

    def cu_seqlens(self, layout: PackedLayout) -> Tensor:
        """B + 1 row offsets on the device, int32."""
        site = self.by_name[CU_SEQLENS]
        found: Tensor = site.launch(layout)
        self._count(site, "kept" if found is layout.cu_seqlens else "rebuilt")
        return found

    def affine_norm(self, x_NC: Tensor, weight_C: Tensor, bias_C: Tensor) -> tuple[Tensor, Tensor]:
        """LayerNorm with weight and bias, and the stream to go on with: ``[N, C]`` each."""
        normed_NC, on_NC = self._call_all(AFFINE_NORM, x_NC, weight_C, bias_C)
        return normed_NC, on_NC

    def residual_norm(
        self,
        x_NC: Tensor,
        h_NC: Tensor,
        gate_BC: Tensor | None,
        shift: Tensor,
        scale: Tensor,
        layout: PackedLayout,
    ) -> tuple[Tensor, Tensor]:
        """The norm of ``x + h * gate`` (``x + h`` without a gate), and that sum: ``[N, C]`` each.

        Shift and scale are a modulation's ``[B, C]``, or an affine norm's bias and weight ``[C]``.
        """
        given = (x_NC, h_NC, gate_BC, shift, scale, layout)
        normed_NC, on_NC = self._call_all(RESIDUAL_NORM, *given)
        return normed_NC, on_NC

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """A Linear of a block: ``x @ weight.T + bias``."""
        return self._call(LINEAR, x, weight, bias)

    def mlp_hidden(self, x_NC: Tensor, weight_FC: Tensor, bias_F: Tensor) -> Tensor:
        """First Linear and activation of the MLP: ``[N, mlp]``."""
        return self._call(MLP_HIDDEN, x_NC, weight_FC, bias_F)

    def mlp(
        self,
        x_NC: Tensor,
        up_FC: Tensor,
        up_bias_F: Tensor,
        down_CF: Tensor,
        down_bias_C: Tensor,
    ) -> Tensor:
        """Both Linears of the MLP with the activation between them: ``[N, C]``."""
        return self._call(MLP, x_NC, up_FC, up_bias_F, down_CF, down_bias_C)

    def block(self, block: Any, *arguments: Any) -> Any:
        """One transformer block; a stream that it leaves open shows by its last branch."""
        site = self.by_name[BLOCK]
        result: Any = site.launch(block, *arguments)
        self._observe(site, result if isinstance(result, Tensor) else result.h_NC)
        return result

    def micro_batches(self, samples: Sequence[S], size: int) -> list[Sequence[S]]:
        """How a step's samples are split, ``size`` being the reference's micro-batch."""
        found: list[Sequence[S]] = self.by_name[MICRO_BATCHES].launch(samples, size)
        return found

    def micro_batch_ran(self, drawn: Sequence[int], first: int) -> None:
        """Count one micro-batch.

        Args:
            drawn: its samples' positions among the step's, in the order in which they are packed.
            first: how many samples of the step went before it.
        """
        usual = list(range(first, first + len(drawn)))
        moved = "" if list(drawn) == usual else " regrouped"
        moved = " reordered" if moved and sorted(drawn) == usual else moved
        self._count(self.by_name[MICRO_BATCHES], f"samples={len(drawn)}{moved}")

    def _count(self, site: Site, plan: str) -> None:
        if torch.compiler.is_compiling():
            return
        for axis in self.watch:
            site.observe(axis, plan)

    def _call(self, name: str, *arguments: Any) -> Tensor:
        site = self.by_name[name]
        result: Tensor = site.launch(*arguments)
        self._observe(site, result)
        return result

    def _call_all(self, name: str, *arguments: Any) -> tuple[Tensor, ...]:
        """Of several results the first shows which backward ran."""
        site = self.by_name[name]
        results: tuple[Tensor, ...] = site.launch(*arguments)
        self._observe(site, results[0])
        return results

    def _observe(self, site: Site, result: Tensor) -> None:
        """Count the backward of a result when it runs; inside compiled code there is none to see.

        A compiled region is seen as a whole where its result leaves it.
        """
        if torch.compiler.is_compiling():
            return
        node = result.grad_fn
        if not self.watch or node is None:
            return
        plan, axes = f"backward={node.name().removesuffix('Backward0')}", tuple(self.watch)

        def ran(*_: Any) -> None:
            for axis in axes:
                site.observe(axis, plan)

        node.register_hook(ran)
