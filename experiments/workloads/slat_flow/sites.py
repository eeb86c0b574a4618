"""The sites of the flow transformer, and the watcher that sees which backward ran.

A lever changes ``launch`` of a site; the block calls through :class:`Sites`, and never keeps the
callable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from experiments.workloads.slat_flow import original
from experiments.workloads.slat_flow.layout import PackedLayout
from experiments.workloads.slat_flow.names import (
    ATTENTION,
    BLOCK,
    BROADCAST,
    GATE_RESIDUAL,
    MLP_ACTIVATION,
    MODULATE,
    QK_NORM_ROPE,
)
from experiments.workloads.slat_flow.precision import Precision
from levers.base import Site


def call_block(block: Any, *arguments: Any) -> Tensor:
    """Run a block as it is: eagerly."""
    result: Tensor = block(*arguments)
    return result


class Sites:
    """The slots of the step; each call goes through the slot's callable of the moment.

    While ``watch`` holds axes, each site counts, for each of them, what autograd node its result
    came from, at the time that node's backward runs.
    """

    def __init__(self, precision: Precision, attn: str) -> None:
        attention = (
            original.VarlenAttention() if attn == "varlen" else original.SdpaAttention(precision)
        )
        launches: dict[str, Any] = {
            BROADCAST: original.broadcast,
            MODULATE: original.Modulate(self.broadcast, precision),
            GATE_RESIDUAL: original.GateResidual(self.broadcast),
            QK_NORM_ROPE: original.QkNormRope(precision),
            ATTENTION: attention,
            MLP_ACTIVATION: original.mlp_activation,
            BLOCK: call_block,
        }
        self.by_name = {name: Site(name, launch) for name, launch in launches.items()}
        self.watch: Sequence[str] = ()

    def broadcast(self, mod_BC: Tensor, layout: PackedLayout) -> Tensor:
        """Each sample's row for each of its tokens: ``[N, C]``."""
        return self._call(BROADCAST, mod_BC, layout)

    def modulate(
        self, x_NC: Tensor, shift_BC: Tensor, scale_BC: Tensor, layout: PackedLayout
    ) -> Tensor:
        """LayerNorm and modulation: ``[N, C]``."""
        return self._call(MODULATE, x_NC, shift_BC, scale_BC, layout)

    def gate_residual(
        self, x_NC: Tensor, h_NC: Tensor, gate_BC: Tensor, layout: PackedLayout
    ) -> Tensor:
        """``x + h * gate``: ``[N, C]``."""
        return self._call(GATE_RESIDUAL, x_NC, h_NC, gate_BC, layout)

    def qk_norm_rope(
        self, q_NHD: Tensor, k_MHD: Tensor, gamma_q: Tensor, gamma_k: Tensor, phases: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Normalised and turned queries and keys."""
        site = self.by_name[QK_NORM_ROPE]
        q, k = site.launch(q_NHD, k_MHD, gamma_q, gamma_k, phases)
        self._observe(site, q)
        return q, k

    def attention(
        self, q_NHD: Tensor, k_MHD: Tensor, v_MHD: Tensor, queries: PackedLayout, keys: PackedLayout
    ) -> Tensor:
        """``[N, H, D]``."""
        return self._call(ATTENTION, q_NHD, k_MHD, v_MHD, queries, keys)

    def mlp_activation(self, h_NF: Tensor) -> Tensor:
        """``[N, mlp]``."""
        return self._call(MLP_ACTIVATION, h_NF)

    def block(self, block: Any, *arguments: Any) -> Tensor:
        """One transformer block."""
        return self._call(BLOCK, block, *arguments)

    def _call(self, name: str, *arguments: Any) -> Tensor:
        site = self.by_name[name]
        result: Tensor = site.launch(*arguments)
        self._observe(site, result)
        return result

    def _observe(self, site: Site, result: Tensor) -> None:
        node = result.grad_fn
        if not self.watch or node is None:
            return
        plan, axes = f"backward={node.name().removesuffix('Backward0')}", tuple(self.watch)

        def ran(*_: Any) -> None:
            for axis in axes:
                site.observe(axis, plan)

        node.register_hook(ran)
