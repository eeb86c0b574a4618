"""The Linears of the blocks: gradients of weight and bias in fp32 from the kernel that sums them.

What changes: the callable of the site of the Linears. Under autocast PyTorch multiplies in bf16 and
keeps fp32 parameters, so that each Linear casts its weight and bias on the way in, and casts both
gradients back on the way out: the weight's product rounds its fp32 sums to bf16, a cast widens
them, and the bias's column sums do the same. Here the weight's product writes its fp32 sums, a
column-sum kernel writes the bias's, and weight and bias are cast in one launch. The forward is the
original's bit for bit, and so is the gradient of bf16 rows.

Mechanism: launches and bytes. A trained Linear costs one cast and its launch less forward, two
casts less backward, and its bias's sum reads the gradient once at the memory's bandwidth: 19,812
rows of 1,536 are 61 MB, at 4.3 TB/s 14 us. The widening cast of a weight's gradient moves 6 bytes
an element, of which 2 come back because the product writes 4 instead of 2: for the 1.3 billion
parameters of 30 blocks 5.2 GB a step less, 1.2 ms at 4.3 TB/s.

Numerics: the same products with the same fp32 sums, rounded less. The original's gradients of fp32
parameters carry bf16's relative rounding of up to 2^-9; these carry none. Rows that come in fp32
(from a norm that is not fused) get their gradient in fp32 for the same reason.

Where it does not help: parameters kept in bf16, whose gradients are no wider than the products';
frozen blocks, of which only the cast forward is left; the embeddings and the output, which do not
pass through the site; a CPU, where the workload multiplies in fp32 and there is no cast to save:
there it is the same arithmetic. It cannot share the Linears with 8-bit products. Below the fused
hidden layer of the MLP it still writes the weight's gradient, and the bias's is summed there.

Sources: PyTorch ``aten/src/ATen/autocast_mode.cpp`` (the casts) and ``aten/src/ATen/native/cuda/
Blas.cpp`` (``mm`` with ``out_dtype``); Micikevicius et al. 2018, arXiv:1710.03740 (fp32 master
weights).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from levers.base import OpCase, Site
from levers.step_lever import StepLever

SITE = "flow.linear"


class FusedLinearGradsLever(StepLever):
    """Swaps the callable of the Linears for the one whose backward casts nothing."""

    name = "fused_linear_grads"
    summary = "fp32 gradients of the Linears' weights and biases without a cast"
    env = "LEVER_FUSED_LINEAR_GRADS"
    touches = (SITE,)

    def operation(self, site: Site, setting: str) -> Callable[..., Any]:
        """Our Linear; it takes its dtypes from the one that was there and rounds less."""
        del setting
        from levers.kernels.linear_grads import FusedLinearGrads

        return FusedLinearGrads(site.launch)

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        """Output and gradients over sides, rows, dtypes, frozen parts and adversarial values."""
        del setting
        from levers.kernels.linear_grads_cases import op_cases

        return op_cases(device)


LEVER = FusedLinearGradsLever()
