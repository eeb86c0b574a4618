"""LayerNorm and modulation of the flow blocks in one kernel each way.

What changes: twice a block, the original normalises the stream in fp32, gathers ``1 + scale`` and
``shift`` for every token, multiplies, adds, and lets the next Linear round: five passes over
``[N, C]``, most of them fp32. Here one kernel reads the bf16 stream and writes the bf16 operand of
that Linear. The roundings are the original's.

Mechanism: the forward moves 4 bytes an element where the original moves about 44, and no gathered
``[N, C]`` row exists in either direction. The backward recomputes the normalised row from the
stream and two fp32 values, and sums the gradients of scale and shift over a sample's rows in fp32
registers while it writes the stream's: the walk and the roundings of the indexed backward (see
``segment_sum_broadcast``, which this supersedes at its site) are gone without a second pass. Kept
for the backward: the bf16 stream, which is alive anyway, in place of fp32 copies of it. The stream
itself goes on through the operation, so that the gradient that comes back along it is read and
added in fp32 in the same pass, 2 bytes an element, where autograd's sum of both moves 6.

Where it does not help: blocks that ``torch.compile`` fuses as a whole (Inductor writes much the
same kernel), steps that large matrix products fill (short rows, few tokens), a CPU, in speed,
beyond the gathers it saves, and layers whose modulation is a vector for all samples.

Sources: Ba, Kiros and Hinton, Layer Normalization (2016); Tillet et al., Triton (2019) and its
layer-norm tutorial (partial sums by program, then a second kernel); Peebles and Xie, Scalable
Diffusion Models with Transformers (2023), for the modulated norm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from levers.base import OpCase, Site
from levers.step_lever import StepLever

SITE = "flow.modulate"


class FusedModulate(StepLever):
    """Swaps the modulated norm for the fused one."""

    name = "fused_modulate"
    summary = "LayerNorm and modulation in one kernel, fp32 sums in its backward"
    env = "LEVER_FUSED_MODULATE"
    touches = (SITE,)
    supersedes: tuple[str, ...] = ("segment_sum_broadcast",)

    def operation(self, site: Site, setting: str) -> Callable[..., Any]:
        """The fused operation."""
        del site, setting
        from levers.kernels.modulate import modulate

        return modulate

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        """Forward and backward over lengths, means, widths, dtypes and adversarial values."""
        del setting
        from levers.kernels.modulate_cases import op_cases

        return op_cases(device)


LEVER = FusedModulate()
