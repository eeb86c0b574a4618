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

from levers.compiler import CompiledFlow


class CompileSlatFlow(CompiledFlow):
    """Compiles the blocks of packed batches."""

    name = "compile_slat_flow"
    summary = "torch.compile on the blocks of the packed flow, for any token counts"
    env = "LEVER_COMPILE_SLAT_FLOW"
    workloads = ("slat_flow",)
    packed = True
    other = "compile_ss_flow"


LEVER = CompileSlatFlow()
