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

import importlib.util
from collections.abc import Mapping, Sequence

from levers.base import OFF, Facts, OpCase, Settings, Site
from levers.policy import GatingPolicy, Guard, ParityClass

ON = "on"
SITE = "flow.mlp_hidden"

PEAK_MEMORY_MARGIN = 0.01
"""Log ratio; allocated bytes repeat to the byte on CUDA. A CPU's resident set guards nothing."""

CPU_MARGIN = 0.03
"""Log ratio. One shared core moves a step by up to 3 % between processes."""


class FusedMlpHidden:
    """Swaps the callable of the hidden layer's site for the fused one."""

    name = "fused_mlp_hidden"
    summary = "GELU of the MLP with the bias's gradient summed in its backward kernel"
    settings = Settings((OFF, ON))
    env = "LEVER_FUSED_MLP_HIDDEN"
    touches = (SITE,)
    supersedes: tuple[str, ...] = ()
    composes_with: tuple[str, ...] = ()
    workloads = ("slat_flow", "ss_flow")
    at_import = False

    def policy(self, facts: Facts) -> GatingPolicy:
        """Throughput must win, and memory may not grow; lossless: fewer roundings in a sum."""
        on_cpu = facts.device_type == "cpu"
        memory = Guard("memory/peak_bytes", PEAK_MEMORY_MARGIN)
        return GatingPolicy(
            primaries=("train/tok_s",),
            guards=() if on_cpu else (memory,),
            claims=ParityClass.LOSSLESS,
            primary_margin=CPU_MARGIN if on_cpu else 0.01,
        )

    def unmet(self, facts: Facts, setting: str) -> tuple[str, ...]:
        """It needs its site, and Triton where the device is CUDA."""
        reasons = []
        if setting != OFF and SITE not in facts.sites:
            reasons.append(f"{facts.workload} has no site {SITE}")
        if setting != OFF and facts.device_type == "cuda" and not _has_triton():
            reasons.append("the CUDA kernels need triton, which is not installed")
        return tuple(reasons)

    def environment(self, setting: str) -> Mapping[str, str]:
        """No variable beside the kill switch."""
        del setting
        return {}

    def enable(self, site: Site, setting: str) -> object:
        """Put the fused layer in the site, over the Linear that was used there."""
        if setting == OFF:
            return site.launch
        from levers.kernels.mlp_hidden import over_linear_of

        found, site.launch = site.launch, over_linear_of(site.launch)
        return found

    def disable(self, site: Site, undo: object) -> None:
        """Put back the callable that ``enable`` found."""
        site.launch = undo  # type: ignore[assignment]

    def witness(self, site: Site) -> Mapping[str, str]:
        """Per axis, which autograd nodes ran the backward, and how often."""
        return {
            axis: ", ".join(f"{plan} x {count}" for plan, count in sorted(plans.items()))
            for axis, plans in site.observations.items()
        }

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        """Forward and backward over rows, dtypes, both tails and adversarial values."""
        del setting
        from levers.kernels.mlp_hidden_cases import op_cases

        return op_cases(device)


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


LEVER = FusedMlpHidden()
