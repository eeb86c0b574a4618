"""``torch.compile`` on the blocks of the dense flow: row-wise work fused between the products.

What changes: each transformer block runs as five compiled parts with the two attentions between
them. One compiled function serves all blocks, with the weights as inputs. The complex rotary
product is written in real numbers inside (the compiler has no code for complex ones).

Mechanism: eagerly a block makes some forty passes over ``[N, C]`` beside its products (LayerNorm,
modulation, head norms, rotation, GELU, residuals, each in fp32 or with a cast) and keeps many of
the results for the backward. The compiler makes one kernel of each run of them, keeps what is
cheap to keep and computes the rest again in the backward: less traffic and less memory. Sums in
another order and fewer roundings in between are all that differs.

Where it does not help: packed batches (``compile_slat_flow``), blocks whose row-wise sites already
hold fused kernels (little is left to fuse, and a kernel that the compiler cannot take in is a break
in the graph, counted in the sample's facts), steps that are short against tens of seconds of
compilation, and the attentions themselves.

Sources: PyTorch's regional compilation recipe (one compilation for repeated blocks); Ansel et al.,
PyTorch 2 (ASPLOS 2024).
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


class CompileSsFlow:
    """Swaps the callable of the block site for one that runs compiled parts."""

    name = "compile_ss_flow"
    summary = "torch.compile on the blocks of the dense flow, attentions left outside"
    settings = Settings((OFF, ON, TUNED))
    env = "LEVER_COMPILE_SS_FLOW"
    touches = (SITE,)
    supersedes: tuple[str, ...] = ()
    composes_with: tuple[str, ...] = ()
    workloads = ("ss_flow",)
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
        """It needs the block site, dense batches, and what the code generator needs."""
        if setting == OFF:
            return ()
        reasons = []
        if SITE not in facts.sites:
            reasons.append(f"{facts.workload} has no site {SITE}")
        if facts.parameters.get("profile", "dense") != "dense":
            reasons.append("the batch is packed: use compile_slat_flow")
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
        site.launch = CompiledBlock(dynamic=False, mode="default" if setting == ON else setting)
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

        return op_cases(setting, device, packed=False)


LEVER = CompileSsFlow()
