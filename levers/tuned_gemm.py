"""The Linears of the blocks through cuBLASLt, each product by an algorithm measured on its shape.

What changes: the callable of the site of the Linears. The original asks PyTorch for a product, and
PyTorch takes the first algorithm that cuBLAS's heuristic names, unmeasured. Here the heuristic's
first twelve proposals each run a few times on the very operands, in the warm-up and under load, and
the fastest is kept for that shape, form and dtype, if it is clearly faster than the first. The
winners are among the facts of a sample, as an autotuner's are. Around the products it does what
``fused_linear_grads`` does, whose place it takes: weight and bias are rounded in one launch, and
their gradients are written in fp32 without a cast. With the setting ``narrow`` a weight's gradient
is written in bf16 and widened, as the original's: products that write 4 bytes an element are not
the faster ones at every width. With ``bgradb`` the product of a weight's gradient also sums the
columns of what it reads, which is the bias's gradient (epilogue BGRADB), in place of a kernel that
reads all of it once more.

Mechanism: a heuristic foretells a product's time from a model of the device, because it may not
run it; tiles, stages, clusters and the order in which tiles visit the memory can each be worth
a few per cent on products of this size, and products are most of a step. At 32,768 rows a product
of a block's widest Linear is 0.82 TFLOP: 1.16 ms at 710 TFLOP/s and 1.04 ms at 790.

Numerics: fp32 sums in another order. Sums that are split over k are kept in fp32, where PyTorch
lets cuBLAS round the parts to bf16 by default.

Where it does not help: shapes for which the heuristic's first choice is the best; sides that are no
multiple of 8, which stay with PyTorch's products; training on
packed samples of ever new lengths, where each step of 2,048 rows is measured once, in the first
steps; steps that small products and launches fill; a CPU, where it is the same arithmetic. It
cannot share the Linears with 8-bit products.

Sources: NVIDIA, cuBLAS library documentation, ``cublasLtMatmulAlgoGetHeuristic``; PyTorch
``aten/src/ATen/cuda/CUDABlas.cpp`` (one proposal is asked for).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from levers.base import OFF, OpCase, Settings, Site
from levers.site_lever import ON
from levers.step_lever import StepLever

SITE = "flow.linear"
NARROW = "narrow"
BGRADB = "bgradb"


class TunedGemm(StepLever):
    """Swaps the callable of the Linears for the one with measured algorithms."""

    name = "tuned_gemm"
    summary = "the Linears' products by cuBLASLt algorithms measured on their shapes"
    settings = Settings((OFF, ON, NARROW, BGRADB))
    env = "LEVER_TUNED_GEMM"
    touches = (SITE,)
    supersedes: tuple[str, ...] = ("fused_linear_grads",)

    def operation(self, site: Site, setting: str) -> Callable[..., Any]:
        """Our Linear; it takes its dtypes from the one that was there."""
        from levers.kernels.cublaslt_linear import TunedLinears

        return TunedLinears(site.launch, narrow=setting == NARROW, beside=setting == BGRADB)

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        """Output and gradients over sides, rows, dtypes, frozen parts and adversarial values."""
        from levers.kernels.cublaslt_linear_cases import op_cases

        return op_cases(device, narrow=setting == NARROW, beside=setting == BGRADB)


LEVER = TunedGemm()
