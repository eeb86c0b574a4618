"""LayerNorm with weight and bias of the flow blocks, from bf16 to bf16, in one kernel each way.

What changes: before the cross-attention of each block the original copies the stream to fp32,
normalises it into another fp32 tensor, and lets the next Linear round that to bf16. Here one kernel
reads the bf16 stream and writes the bf16 operand of that Linear.

Mechanism: the forward moves 4 bytes an element where the original moves 20 (two casts and the
norm), because nothing is written in fp32. The backward reads the bf16 gradient and stream, writes
the bf16 gradient of the stream, and sums those of weight and bias in fp32 registers in the same
pass; the programs' partials are summed by a second kernel, in a fixed order. Kept for the backward:
the bf16 stream, which is alive anyway, in place of an fp32 copy. The stream itself goes on through
the operation, so that the gradient that comes back along it is read and added in fp32 in the same
pass, 2 bytes an element, where autograd's sum of both moves 6.

Where it does not help: blocks that ``torch.compile`` fuses as a whole, a CPU, whose LayerNorm is
one kernel already, and precisions in which the next Linear multiplies in fp32.

Sources: Ba, Kiros and Hinton, Layer Normalization (2016); PyTorch
``aten/src/ATen/native/cuda/layer_norm_kernel.cu`` (the original); Tillet et al., Triton (2019) and
its layer-norm tutorial.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from levers.base import OpCase, Site
from levers.step_lever import StepLever

SITE = "flow.affine_norm"


class FusedAffineNorm(StepLever):
    """Swaps the affine norm for the fused one."""

    name = "fused_affine_norm"
    summary = "affine LayerNorm from bf16 to bf16 in one kernel each way"
    env = "LEVER_FUSED_AFFINE_NORM"
    touches = (SITE,)

    def operation(self, site: Site, setting: str) -> Callable[..., Any]:
        """The fused operation."""
        del site, setting
        from levers.kernels.affine_norm import affine_norm

        return affine_norm

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        """Forward and backward over lengths, means, widths, dtypes and adversarial values."""
        del setting
        from levers.kernels.affine_norm_cases import op_cases

        return op_cases(device)


LEVER = FusedAffineNorm()
