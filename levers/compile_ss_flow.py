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

from levers.compiler import CompiledFlow


class CompileSsFlow(CompiledFlow):
    """Compiles the blocks of dense batches."""

    name = "compile_ss_flow"
    summary = "torch.compile on the blocks of the dense flow, attentions left outside"
    env = "LEVER_COMPILE_SS_FLOW"
    workloads = ("ss_flow",)
    packed = False
    other = "compile_slat_flow"


LEVER = CompileSsFlow()
