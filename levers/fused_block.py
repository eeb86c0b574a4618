"""A whole decode step's block in five launches beside attention, each weight read once.

What changes: the callable of a block, for steps of up to 32 rows. The original is some 25 launches:
residual adds, norms, projections by a general matrix library, head norms, rotations, copies into
the cache, SwiGLU. Here residual add and RMS norm happen inside the projection behind them, SwiGLU
inside the projection before it, and head norms, rotary positions and the cache's new rows in one
launch. Prompts go on to the callable that was there. The setting ``early`` makes these launches
programmatic dependent ones (compute capability 9.0 and later): each is on the device, with its
first weights asked for, when the one before it ends. It computes the same bits as ``on``.

Mechanism: at small batches a step is bound by reading the weights, and a launch that reads 4 to 12
MB (as those of a 0.6 B model) takes 1 to 3 us at 4.3 TB/s, which is no more than the time between
two launches and the ramp at both ends of each. So the number of launches decides, and how early
each has its bytes under way. The products stream weights in whole lines, several programs an SM,
with the first tile asked for before the activations are looked at; the norm's scale, one number a
row, is applied to the result, so that no pass over the row stands before the weights. A block of
0.6 B has 31 MB, 7.3 us; one of 4 B 202 MB, 47 us.

Numerics: the sum of the stream is rounded as before; then there is one rounding at the end of each
product, where the separate operations round the norm, the product, the activation and the gated
product (from five rows on the norm is rounded as well). Sums run in another order than the
library's. So the lever claims lossless, and never byte-exact.

Where it does not help: prompts and batches above 32 rows, whose products are bound by arithmetic;
large batches at long contexts, where reading the cache fills the step; and a CPU, where there are
no launches to save (unmet there).

Sources: Williams et al. 2009 (roofline); Zhang and Sennrich 2019, arXiv:1910.07467 (RMS norm);
Shazeer 2020, arXiv:2002.05202 (SwiGLU); Osama et al. 2023, arXiv:2301.03598 (splitting the inputs
of a product); NVIDIA CUDA C++ programming guide (programmatic dependent launch).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from levers.base import OFF, Facts, OpCase, Settings, Site
from levers.decode_lever import DecodeLever
from levers.site_lever import ON

SITE = "decode.block"
EARLY = "early"


class FusedBlock(DecodeLever):
    """Swaps the callable of the blocks for the fused one, which hands prompts to what it found."""

    name = "fused_block"
    summary = "a decode step's block in five launches beside attention"
    settings = Settings((OFF, ON, EARLY))
    env = "LEVER_FUSED_BLOCK"
    touches = (SITE,)

    def unmet(self, facts: Facts, setting: str) -> tuple[str, ...]:
        """It needs its site, Triton, and a CUDA device."""
        reasons = super().unmet(facts, setting)
        if setting != OFF and facts.device_type == "cpu":
            return (*reasons, "on a CPU there are no launches to save; use a CUDA device")
        return reasons

    def operation(self, site: Site, setting: str) -> Callable[..., Any]:
        """The fused block in front of the callable that is there."""
        from levers.kernels.fused_block import FusedBlock as Operation

        return Operation(site.launch, early=setting == EARLY)

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        """Every product of three models' blocks and whole blocks, 1 to 32 rows, odd values."""
        from levers.kernels.fused_block_cases import op_cases

        return op_cases(device, early=setting == EARLY)


LEVER = FusedBlock()
