"""RMS norm of the heads and 3-D RoPE of queries and keys in one kernel, forward and backward.

What changes: the published block normalises each head of queries and keys in fp32
(``F.normalize``, times gamma and sqrt(D), rounded to bf16) and then turns adjacent channels by
complex multiplication in fp32, rounded again. That is some twenty launches each way with fp32
intermediates of the size of the activations. Here one launch reads the bf16 rows where they lie in
the packed projection, keeps everything in registers with the same two roundings, turns by cosines
and sines (the phases read as real numbers), and writes contiguous bf16 rows. The backward is one
launch as well: it reads the rows again in place of saved fp32 copies, and leaves partial sums for
the gradients of the gammas, in fp32.

Mechanism: every one of those element-wise steps is bound by the memory's bandwidth, so the time
follows the bytes. Per element of queries and keys the original moves about 60 bytes forward and
100 backward, the kernels 4 and 6. The packed projection goes in whole, and the values come out as a
view, so that the backward writes one packed gradient: 4 bytes an element of values, where autograd
stacks the gradients of all three, 4 bytes an element of each. Saving the bf16 rows alone also frees
the fp32 copies that autograd kept. The gradient of the rotated values is not rounded between
rotation and norm, as the original does, so gradients come nearer to fp64.

Where it does not help: blocks that ``torch.compile`` fuses (they gain the absence of complex
numbers, which Inductor does not generate code for), a step that is bound by the host's launches or
by attention, short sequences. A CPU runs the same arithmetic in plain PyTorch, and stacks.

Sources: Zhang and Sennrich 2019, arXiv:1910.07467 (RMS norm); Su et al. 2021, arXiv:2104.09864
(RoPE); ``torch.nn.functional.normalize`` (the clamp at 1e-12); Williams et al. 2009 (roofline).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from levers.base import OpCase, Site
from levers.step_lever import StepLever

SITE = "flow.qk_norm_rope"


class FusedQkNormRope(StepLever):
    """Swaps the callable of the norm-and-rotate site for the fused one."""

    name = "fused_qk_norm_rope"
    summary = "head RMS norm and RoPE of queries and keys in one kernel each way"
    env = "LEVER_FUSED_QK_NORM_ROPE"
    touches = (SITE,)

    def operation(self, site: Site, setting: str) -> Callable[..., Any]:
        """The fused operation; lossless, with one rounding fewer in the backward."""
        del site, setting
        from levers.kernels.qk_norm_rope import qk_norm_rope

        return qk_norm_rope

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        """Forward and backward, with and without positions, ragged rows, adversarial values."""
        del setting
        from levers.kernels.qk_norm_rope_cases import op_cases

        return op_cases(device)


LEVER = FusedQkNormRope()
