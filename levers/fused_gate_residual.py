"""The gated residual of the flow blocks, ``x + h * gate``, in one kernel each way.

What changes: twice a block, the original gathers the gate's row for every token, multiplies and
rounds, adds and rounds. Here one kernel computes in fp32 and rounds once.

Mechanism: the forward moves 6 bytes an element (two rows read, one written) where the original
moves 14, because the gathered rows and the product are never written. In the backward ``x`` takes
the gradient itself, one pass writes ``h``'s, and the gate's is summed over a sample's rows in fp32
registers in that same pass: the walk and the roundings of the indexed backward (see
``segment_sum_broadcast``, which this supersedes at its site) are gone. Only ``h`` and the gate are
kept, where the original keeps the gathered gate as well.

Where it does not help: blocks that ``torch.compile`` fuses as a whole, steps that large matrix
products fill, a CPU, in speed, beyond the gather it saves, and ungated residuals.

Sources: Peebles and Xie, Scalable Diffusion Models with Transformers (2023), for the gate; Higham,
Accuracy and Stability of Numerical Algorithms, ch. 4 (blocked summation); Tillet et al., Triton
(2019).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from levers.base import OpCase, Site
from levers.step_lever import StepLever

SITE = "flow.gate_residual"


class FusedGateResidual(StepLever):
    """Swaps the gated residual for the fused one."""

    name = "fused_gate_residual"
    summary = "gated residual in one kernel, fp32 sum in its backward"
    env = "LEVER_FUSED_GATE_RESIDUAL"
    touches = (SITE,)
    supersedes: tuple[str, ...] = ("segment_sum_broadcast",)

    def operation(self, site: Site, setting: str) -> Callable[..., Any]:
        """The fused operation."""
        del site, setting
        from levers.kernels.gate_residual import gate_residual

        return gate_residual

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        """Forward and backward over lengths, means, widths, dtypes and adversarial values."""
        del setting
        from levers.kernels.gate_residual_cases import op_cases

        return op_cases(device)


LEVER = FusedGateResidual()
