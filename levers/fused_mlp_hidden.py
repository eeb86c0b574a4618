"""Bias and GELU of the MLP's hidden layer: the bias's gradient in the activation's backward pass.

What changes: the published MLP runs a Linear with bias, then GELU in its tanh form. The backward is
then three passes over ``[N, 8192]`` beside the products: the activation's (reads the gradient and
the pre-activation, writes the pre-activation's gradient) and the bias's column sum, which reads all
of that gradient again. Here one kernel does both: it keeps the column sums in fp32 registers while
it writes, so that nothing is read twice. The bias stays in the forward product's epilogue, where it
costs nothing. What is kept for the backward is what the original keeps: the rows, the
pre-activation in bf16, and the activation for the next Linear.

Mechanism: the passes are bound by the memory's bandwidth. At 19,812 rows the original's backward
moves 8 bytes an element of the hidden layer and the kernel 6: at 4.3 TB/s 302 us against 226 us for
each block. The sums are taken before rounding and rounded once to the parameter's dtype, where the
original rounds each addend and the sum to bf16, so the bias's gradient comes nearer to fp64. GELU
is written as ``h sigmoid(2u)``, which does not cancel in the negative tail as ``1 + tanh(u)`` does.

Where it does not help: the forward moves the same bytes as before (its gain would need the
activation in the product's own epilogue, which PyTorch's products do not offer together with the
pre-activation), so the gain is bound by a quarter of the activation's backward, about 2 ms of a
step of 30 blocks; blocks that ``torch.compile`` fuses; a CPU, where it is the same arithmetic in
plain PyTorch.

It calls the Linear that the original called, through that Linear's own site, so it can be combined
with a lever on the Linears (fp8, say); such a Linear is handed a bias that needs no gradient.

Sources: Hendrycks and Gimpel 2016, arXiv:1606.08415 (GELU); Williams et al. 2009 (roofline);
NVIDIA cuBLASLt documentation, ``CUBLASLT_EPILOGUE_BIAS`` and ``CUBLASLT_EPILOGUE_DGELU_BGRAD`` (the
epilogue that sums the bias's gradient).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from levers.base import OpCase, Site
from levers.step_lever import StepLever

SITE = "flow.mlp_hidden"


class FusedMlpHidden(StepLever):
    """Swaps the callable of the hidden layer's site for the fused one."""

    name = "fused_mlp_hidden"
    summary = "GELU of the MLP with the bias's gradient summed in its backward kernel"
    env = "LEVER_FUSED_MLP_HIDDEN"
    touches = (SITE,)

    def operation(self, site: Site, setting: str) -> Callable[..., Any]:
        """The fused layer over the Linear that was used there; fewer roundings in a sum."""
        del setting
        from levers.kernels.mlp_hidden import over_linear_of

        return over_linear_of(site.launch)

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        """Forward and backward over rows, dtypes, both tails and adversarial values."""
        del setting
        from levers.kernels.mlp_hidden_cases import op_cases

        return op_cases(device)


LEVER = FusedMlpHidden()
