"""The sites of the decoder: the callable in use at each, and what was seen to run there.

A lever changes ``launch`` of a site; the decoder calls through :class:`DecodeSites` and never keeps
the callable. While ``watch`` holds an axis, each call is counted for it after it returned, under
what the callable says that it ran: its attribute ``ran``, set by the callable where it launches
(such as ``triton add_norm``), or, without one, its module and name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from experiments.workloads.decode import names, original
from levers.base import Site
from levers.kernels.split_heuristic import upstream_splits
from levers.kernels.split_kv import Backend, PagedKV, SplitPlan, Workspace

if TYPE_CHECKING:
    from experiments.workloads.decode.engine import DecodeEngine
    from experiments.workloads.decode.model import Attend, Block, Matrix, Rope

UNWATCHED = ""
"""No axis is exercised."""


class DecodeSites:
    """The slots of the decoder; each call goes through the slot's callable of the moment."""

    def __init__(self, backend: Backend = "torch", *, graph: bool = False) -> None:
        launches: dict[str, Callable[..., Any]] = {
            names.ADD_NORM: original.add_norm,
            names.QK_NORM_ROPE: original.qk_norm_rope,
            names.SWIGLU: original.swiglu,
            names.LINEAR: original.linear,
            names.WEIGHTS: original.keep,
            names.BLOCK: original.block,
            names.ATTENTION: original.Attention(backend),
            names.SPLIT_RULE: upstream_splits,
            names.SPLIT_RULE_CONTIGUOUS: upstream_splits,
            names.STEP: original.Step(captured=graph),
        }
        self.by_name = {name: Site(name, launch) for name, launch in launches.items()}
        self.watch = UNWATCHED
        self._add_norm = self.by_name[names.ADD_NORM]
        self._qk_norm_rope = self.by_name[names.QK_NORM_ROPE]
        self._swiglu = self.by_name[names.SWIGLU]
        self._linear = self.by_name[names.LINEAR]
        self._block = self.by_name[names.BLOCK]
        self._attention = self.by_name[names.ATTENTION]

    def add_norm(
        self, x_NC: Tensor, delta_NC: Tensor, weight_C: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Residual add and RMS norm: the sum and the normed rows, ``[N, C]`` each."""
        found: tuple[Tensor, Tensor] = self._add_norm.launch(x_NC, delta_NC, weight_C, eps)
        if self.watch:
            self.saw(self._add_norm)
        return found

    def qk_norm_rope(
        self,
        packed_NPD: Tensor,
        norms: tuple[Tensor, Tensor] | None,
        rope: Rope,
        heads: tuple[int, int],
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """``q_NHD k_NKD v_NKD`` of the packed projection ``[N, H + 2K, D]``."""
        site = self._qk_norm_rope
        found: tuple[Tensor, Tensor, Tensor] = site.launch(packed_NPD, norms, rope, heads, eps)
        if self.watch:
            self.saw(site)
        return found

    def swiglu(self, gate_up_NJ: Tensor) -> Tensor:
        """The gated activation, ``[N, I]``."""
        found: Tensor = self._swiglu.launch(gate_up_NJ)
        if self.watch:
            self.saw(self._swiglu)
        return found

    def linear(self, x_NC: Tensor, weight: Matrix, name: str) -> Tensor:
        """A matrix product with the weight called ``name``: qkv, o, gate_up, down or head."""
        found: Tensor = self._linear.launch(x_NC, weight, name)
        if self.watch:
            self.saw(self._linear)
            if name == "head":
                self._stored(weight)
        return found

    def weights(self, name: str, tensor_EC: Tensor) -> Matrix:
        """The form in which a matrix is stored; asked once a matrix, while it is loaded."""
        found: Matrix = self.by_name[names.WEIGHTS].launch(name, tensor_EC)
        return found

    def block(
        self, parts: Block, x_NC: Tensor, delta_NC: Tensor | None, rope: Rope, attend: Attend
    ) -> tuple[Tensor, Tensor]:
        """One block; ``delta_NC`` (None before the first) is not yet added to the stream."""
        found: tuple[Tensor, Tensor] = self._block.launch(parts, x_NC, delta_NC, rope, attend)
        if self.watch:
            self.saw(self._block)
            for weight in parts.weights.matrices:
                self._stored(weight)
        return found

    def attention(
        self,
        rule: Site,
        q_BHD: Tensor,
        kv: PagedKV,
        plan: SplitPlan,
        out_BHD: Tensor,
        workspace: Workspace,
    ) -> None:
        """The attention of a step into ``out_BHD``; ``rule`` is told the splits launched."""
        launched: int = self._attention.launch(q_BHD, kv, plan, out_BHD, workspace)
        if self.watch:
            self.saw(self._attention)
            rule.observe(self.watch, f"num_splits={launched}")

    def step(self, engine: DecodeEngine, count: int) -> Callable[[], Tensor]:
        """A function that decodes the first ``count`` slots of the engine by one token."""
        found: Callable[[], Tensor] = self.by_name[names.STEP].launch(engine, count)
        return found

    def step_ran(self, how: str) -> None:
        """A whole step was run: ``eager`` or ``captured``."""
        if self.watch:
            self.by_name[names.STEP].observe(self.watch, f"step={how}")

    def saw(self, site: Site) -> None:
        """Count a call for the watched axis under what its callable ran."""
        site.observe(self.watch, ran(site.launch))

    def _stored(self, weight: Matrix) -> None:
        """Count a matrix that is in use for the watched axis, under how it is stored."""
        stored = str(weight.dtype) if isinstance(weight, Tensor) else type(weight).__name__
        self.by_name[names.WEIGHTS].observe(self.watch, f"weights={stored.removeprefix('torch.')}")


def ran(launch: Callable[..., Any]) -> str:
    """What a callable says that it ran at its last call, or its name."""
    said = getattr(launch, "ran", None)
    if said is not None:
        return str(said)
    kind = launch if hasattr(launch, "__qualname__") else type(launch)
    return f"{kind.__module__.rpartition('.')[2]}.{kind.__qualname__}"
