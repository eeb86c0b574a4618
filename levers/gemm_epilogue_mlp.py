"""The MLP of the flow blocks as two products each way: GELU lives in cuBLASLt's epilogues.

What changes: the callable of the site of the whole MLP. The original multiplies, adds the bias,
writes the pre-activation, reads it again for GELU (tanh form), writes the activation, and
multiplies; its backward reads the activation's gradient and the pre-activation in a pass of its
own, and the bias's gradient in another. Here the first product writes both pre-activation and
activation, and the product that makes the activation's gradient multiplies it by GELU's slope, and
before it leaves the tensor cores' registers. The setting ``on`` leaves that gradient's sum over
the rows (for the bias) to the column-sum kernel, in fp32; ``bgrad`` takes it from the epilogue as
well, in the dtype of the rows; ``backward`` does so and leaves the forward's activation to a kernel
of its own; ``bgradb`` is ``on`` with both biases' gradients from the products of the weights'
gradients, in fp32. Which of the library's algorithms runs a product is measured once for each
shape, in the warm-up.

Mechanism: what is left out is traffic of the hidden layer, because its passes are bound by the
memory's bandwidth. At 32,768 rows of 8,192 in bf16 the forward's pass moves 4 bytes an element and
the backward's 6: 1.07 GB and 1.61 GB for each block, and 2.7 GB at 4.3 TB/s are 0.62 ms. What the
epilogues move instead, one write of the activation and one read of the pre-activation, 1.07 GB,
can overlap with the products. With ``bgradb`` the column sums read nothing: the epilogue BGRADB
adds up what the weight's product has loaded. For the second Linear (1,536 columns) that took 771 us
against 775 with the column-sum kernel after it, at 19,812 rows on an H200 (same file as below).

Numerics: products with fp32 sums, each result rounded once. GELU is taken of the pre-activation in
fp32 or in its rounded form, as the library likes, and stored once; the pre-activation that is kept
is bf16, as the original's. The first bias's gradient is summed in fp32 and rounded once, where the
original also rounds each addend. Weights get their gradients in their own dtype, without a cast.
Sums that are split over k are kept in fp32.

Where it does not help: with ``bgrad`` on an H200 (cuBLAS 13.1), where DGELU_BGRAD takes 3.4 ms and
DGELU with column sums after it 1.4 ms at 32,768 rows (``docs/results/h200/gemm_epilogue.json``);
blocks whose MLP multiplies in 8 bits or in fp32; small products, whose
epilogues are no longer hidden; a CPU, where it is the same arithmetic in plain PyTorch. It takes
the place of ``fused_mlp_hidden``, and the MLP's Linears no longer pass through their own site: a
lever there acts on the Linears of the attentions alone.

Sources: Hendrycks and Gimpel 2016, arXiv:1606.08415 (GELU); NVIDIA, cuBLAS library documentation,
``cublasLtEpilogue_t``: GELU_AUX_BIAS, DGELU, DGELU_BGRAD, BGRADB; Williams et al. 2009 (roofline).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from levers.base import OFF, OpCase, Settings, Site
from levers.site_lever import ON
from levers.step_lever import StepLever

if TYPE_CHECKING:
    from levers.kernels.mlp_epilogue import Fusion

SITE = "flow.mlp"
BGRAD = "bgrad"
BGRADB = "bgradb"
BACKWARD = "backward"


class GemmEpilogueMlp(StepLever):
    """Swaps the callable of the MLP for the one with fused epilogues."""

    name = "gemm_epilogue_mlp"
    summary = "GELU and its gradient in the epilogues of the MLP's products (cuBLASLt)"
    settings = Settings((OFF, ON, BGRAD, BACKWARD, BGRADB))
    env = "LEVER_GEMM_EPILOGUE_MLP"
    touches = (SITE,)
    supersedes: tuple[str, ...] = ("fused_mlp_hidden",)

    def operation(self, site: Site, setting: str) -> Callable[..., Any]:
        """Our MLP; it takes its dtypes from the one that was there."""
        from levers.kernels.mlp_epilogue import EpilogueMlps

        return EpilogueMlps(site.launch, self.fusion(setting))

    def fusion(self, setting: str) -> Fusion:
        """What the epilogues take in; imports torch."""
        from levers.kernels.mlp_epilogue import Fusion

        return Fusion(
            active=setting != BACKWARD,
            sums=setting in (BGRAD, BACKWARD),
            beside=setting == BGRADB,
        )

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        """Output and gradients over rows, dtypes, tails, frozen parts and adversarial values."""
        from levers.kernels.mlp_epilogue_cases import op_cases

        return op_cases(device, self.fusion(setting))


LEVER = GemmEpilogueMlp()
