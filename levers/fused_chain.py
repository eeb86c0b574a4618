"""Residual add and RMS norm of the decoder's stream in one kernel, at both sites of every block.

What changes: twice a block a step adds a branch to the residual stream and norms the sum for the
next projection: after attention, and after the MLP with the next block's (at last the final) norm.
The original is two operations; here it is one launch that reads both rows once and writes the sum
and its norm.

Mechanism: at the batches of decode the rows are a few kilobytes, and the time of such an operation
is the time of its launch and of one way to memory. A step of L blocks saves 2 L of its launches. At
prefill lengths the bytes count: 8 an element in place of 10.

Numerics: none of them changes. The sum is rounded to the stream's dtype before it is normed, as the
addition does, the squares are summed in fp32 in the order of PyTorch's own kernel (which a reader
finds written out in the kernel), and the weight multiplies before the one rounding of the result.
So the lever claims byte-exact. A PyTorch that sums in another order would make it lossless, which
may still ship where it wins.

Where it does not help: a step that is one kernel a block already; large batches, where the matrix
products fill the time; a CPU, where it would run the operators of the original (unmet there).

Sources: Zhang and Sennrich 2019, arXiv:1910.07467 (RMS norm); PyTorch
``aten/src/ATen/native/cuda/layer_norm_kernel.cu`` (the order of its sums); Tillet et al. 2019
(Triton).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from levers.base import OFF, Facts, OpCase, Site
from levers.decode_lever import DecodeLever
from levers.policy import ParityClass

SITE = "decode.add_norm"


class FusedChain(DecodeLever):
    """Swaps the residual add and norm for the fused one."""

    name = "fused_chain"
    summary = "residual add and RMS norm of the decoder in one kernel"
    env = "LEVER_FUSED_CHAIN"
    touches = (SITE,)
    claims = ParityClass.BYTE_EXACT
    demands = ParityClass.LOSSLESS

    def unmet(self, facts: Facts, setting: str) -> tuple[str, ...]:
        """It needs its site, Triton, and a CUDA device."""
        reasons = super().unmet(facts, setting)
        if setting != OFF and facts.device_type == "cpu":
            return (*reasons, "on a CPU it runs the operators of the original; use a CUDA device")
        return reasons

    def operation(self, site: Site, setting: str) -> Callable[..., Any]:
        """The fused operation."""
        del site, setting
        from levers.kernels.add_norm import AddNorm

        return AddNorm()

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        """Steps of 1 to 32 rows and a prompt, three widths, adversarial values."""
        del setting
        from levers.kernels.add_norm_cases import op_cases

        return op_cases(device)


LEVER = FusedChain()
