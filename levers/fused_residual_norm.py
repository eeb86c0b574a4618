"""The end of one part of a flow block and the start of the next, in one kernel each way.

What changes: where a branch is added to the stream and the sum is normed at once, the sum was
written by one kernel and read again by the next, forward and backward. That is so three times a
block: ``x + h * gate`` and the affine norm before the cross-attention, ``x + h`` and the modulated
norm before the MLP, ``x + h * gate`` and the modulated norm at the start of the next block. Here
one kernel has the sum in registers. The roundings are those of ``fused_gate_residual``,
``fused_modulate`` and ``fused_affine_norm`` one after the other.

Mechanism: the forward reads stream and branch and writes their sum and the operand of the next
Linear, 8 bytes an element where those levers move 10. The backward reads the gradients of norm and
stream, the sum, and of a gated branch the branch; it writes the stream's gradient and the branch's,
12 bytes an element instead of 14, and sums the gradients of gate, scale and shift (or weight and
bias) in fp32 registers in that same pass. Without a gate both gradients are one tensor, 8 bytes as
before. In all a block moves 56 bytes an element here instead of 66: at 32,768 x 1,536 and 4.3 TB/s
0.12 ms less.

What it takes over: every affine norm, and of the modulated norms and gated residuals all but the
first block's and the last block's. Those two stay with ``fused_modulate`` and
``fused_gate_residual``, which go with it. ``fused_affine_norm`` has nothing left to do beside it
and is not to be on. A block that is recomputed in the backward, or compiled, takes in a stream that
is added up: between such blocks the two levers have their places.

Where it does not help: blocks that ``torch.compile`` fuses as a whole, steps that large matrix
products fill, a CPU, in speed, beyond the gathers it saves.

Sources: Ba, Kiros and Hinton, Layer Normalization (2016); Peebles and Xie, Scalable Diffusion
Models with Transformers (2023), for gate and modulation; Tillet et al., Triton (2019) and its
layer-norm tutorial (partial sums by program, then a second kernel).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from levers.base import OpCase, Site
from levers.step_lever import StepLever

SITE = "flow.residual_norm"


class FusedResidualNorm(StepLever):
    """Swaps the residual with its norm for the fused one."""

    name = "fused_residual_norm"
    summary = "residual and the norm after it in one kernel each way, fp32 sums in its backward"
    env = "LEVER_FUSED_RESIDUAL_NORM"
    touches = (SITE,)
    supersedes: tuple[str, ...] = (
        "fused_affine_norm",
        "fused_gate_residual",
        "fused_modulate",
        "segment_sum_broadcast",
    )

    def operation(self, site: Site, setting: str) -> Callable[..., Any]:
        """The fused operation."""
        del site, setting
        from levers.kernels.residual_norm import residual_norm

        return residual_norm

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        """Forward and backward over forms, lengths, widths, dtypes and adversarial values."""
        del setting
        from levers.kernels.residual_norm_cases import op_cases

        return op_cases(device)


LEVER = FusedResidualNorm()
