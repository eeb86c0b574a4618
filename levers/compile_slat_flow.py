"""``torch.compile`` on the blocks of the packed flow: row-wise work fused between the products.

What changes: each transformer block runs as five compiled parts with the two attentions between
them. One compiled function serves all blocks and all token counts: the number of rows is a symbol
in the generated code. The complex rotary product is written in real numbers inside (the compiler
has no code for complex ones); the variable-length attention stays outside, eager.

Mechanism: as for the dense flow, the passes over ``[N, C]`` between two products become one kernel.
The published recipe leaves the packed model uncompiled, because its token counts change from step
to step; with the rows as a symbol and nothing that depends on a layout inside, they need not.

Where it does not help: the broadcast of the modulation, whose backward the compiler may turn into
the same serial walk or into bf16 atomics (so compare it with ``segment_sum_broadcast`` on in both
arms), sites that already hold fused kernels, steps that are short against tens of seconds of
compilation, dense batches (``compile_ss_flow``).

Sources: PyTorch's documentation of dynamic shapes and of regional compilation; PyTorch issue 137425
(``index_add`` decomposed to ``index_put`` by the compiler).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from levers.base import OFF, Facts, OpCase, Settings, Site
from levers.compiler import missing_compiler
from levers.policy import GatingPolicy, Guard, ParityClass

ON = "on"
TUNED = "max-autotune-no-cudagraphs"
SITE = "flow.block"

PEAK_MEMORY_MARGIN = 0.01
"""Log ratio; allocated bytes repeat to the byte on CUDA. A CPU's resident set guards nothing."""

CPU_MARGIN = 0.03
"""Log ratio; one shared core moves a step by up to 3 % between processes."""


class CompileSlatFlow:
    """Swaps the callable of the block site for one that runs compiled parts."""

    name = "compile_slat_flow"
    summary = "torch.compile on the blocks of the packed flow, for any token counts"
    settings = Settings((OFF, ON, TUNED))
    env = "LEVER_COMPILE_SLAT_FLOW"
    touches = (SITE,)
    supersedes: tuple[str, ...] = ()
    composes_with: tuple[str, ...] = ()
    workloads = ("slat_flow",)
    at_import = False

    def policy(self, facts: Facts) -> GatingPolicy:
        """Throughput must win, and memory may not grow; lossless: sums in another order."""
        on_cpu = facts.device_type == "cpu"
        memory = Guard("memory/peak_bytes", PEAK_MEMORY_MARGIN)
        return GatingPolicy(
            primaries=("train/tok_s",),
            guards=() if on_cpu else (memory,),
            claims=ParityClass.LOSSLESS,
            primary_margin=CPU_MARGIN if on_cpu else 0.01,
        )

    def unmet(self, facts: Facts, setting: str) -> tuple[str, ...]:
        """It needs the block site, packed batches, and what the code generator needs."""
        if setting == OFF:
            return ()
        reasons = []
        if SITE not in facts.sites:
            reasons.append(f"{facts.workload} has no site {SITE}")
        if facts.parameters.get("profile") == "dense":
            reasons.append("the batch is dense: use compile_ss_flow")
        return (*reasons, *missing_compiler(facts.device_type))

    def environment(self, setting: str) -> Mapping[str, str]:
        """No variable beside the kill switch."""
        del setting
        return {}

    def enable(self, site: Site, setting: str) -> object:
        """Put the compiled block in the site; returns the callable that was there."""
        if setting == OFF:
            return site.launch
        from levers.kernels.compiled_block import CompiledBlock

        found = site.launch
        site.launch = CompiledBlock(dynamic=True, mode="default" if setting == ON else setting)
        return found

    def disable(self, site: Site, undo: object) -> None:
        """Put back the callable that ``enable`` found."""
        site.launch = undo  # type: ignore[assignment]

    def witness(self, site: Site) -> Mapping[str, str]:
        """Per axis, which autograd nodes ran the backward of the blocks, and how often."""
        return {
            axis: ", ".join(f"{plan} x {count}" for plan, count in sorted(plans.items()))
            for axis, plans in site.observations.items()
        }

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        """The row-wise chain of a block, forward and backward, compiled and not."""
        from levers.kernels.compiled_block_cases import op_cases

        return op_cases(setting, device, packed=True)


LEVER = CompileSlatFlow()
