"""The matrices of the decoder in 4 bits with a shared scale for every 32 weights (MXFP4).

What changes: each matrix is quantised while the weights are put together, and the bf16 matrix is
freed before the next one is read. A decode step then multiplies by the packed words in one kernel,
which reads 4.25 bits a weight instead of 16. Prefill, with its many rows, writes a matrix out in
bf16 and multiplies by that. All matrices of the blocks are quantised, and the output head; norms
stay, and so does the embedding, of which a step reads one row a token. A head that is tied to the
embedding therefore becomes a matrix of its own: on Qwen3-4B 8.04 GB of weights become 2.91 GB (2.76
times less), of which 0.78 GB are the embedding and 0.21 GB the head's copy; left tied it would be
2.97 times less, and every step would read the head's 0.78 GB. On Qwen3-0.6B, where the embedding is
a quarter of the model, 1.19 GB become 0.63 GB (1.90 times). A matrix whose inputs are no multiple
of 32, or with weights above 12, stays as it is, and the witness says so.

Mechanism: at small batches a step is the time to read the weights. The 100.9 M weights of a block
of the 4 B model are 202 MB in bf16, 47 us at 4.3 TB/s, and 54 MB in this form, 12.5 us. What may
eat the gain is decoding: see ``levers/kernels/mxfp4_decode_triton.py`` for what it costs.

Where it does not help: prefill, where reading the words and writing a matrix out move 2.5 bytes a
weight more (59 us a block of the 4 B model at 4.3 TB/s, beside 520 us of its products with 2,048
rows at 790 TFLOP/s); a CPU, where each product writes its matrix out first, so that only the memory
is won; models of which the embedding is most; and models whose quality does not bear it, small ones
above all.

Numerics: rounding to the nearest of E2M1's magnitudes is off by about 0.1 of the norm of normally
distributed weights, so the outputs are those of another model. The kernels are held against fp64 of
the same quantised weights; what the quantising does is judged by the held-out loss, which a trained
model must be measured with (``--set quality=on``), and by the tokens: every stream may leave the
reference's, but only for a token that the reference itself finds a twentieth as likely as its own.

Sources: OCP Microscaling Formats (MX) Specification v1.0 (2023); Rouhani et al. 2023, Microscaling
Data Formats for Deep Learning; Nguyen et al. 2024, Min-p Sampling (a twentieth); Frantar et al.
2024, MARLIN (weights decoded in registers, in an order made for the tensor cores).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from levers.base import OFF, Facts, OpCase, Site
from levers.decode_lever import LATENCY_MARGIN, DecodeLever
from levers.policy import GatingPolicy, Guard, ParityClass, Tolerance
from levers.site_lever import CPU_MARGIN, PEAK_MEMORY_MARGIN

SITE = "decode.weights"

TOLERANCE = Tolerance(
    relative_error=0.01,
    reason=(
        "of one product with the quantised weights, which is exact up to fp32 sums and one "
        "rounding to bf16 (0.002 of the norm); the rest is for sums that cancel"
    ),
)

WEIGHT_BYTES = "memory/weights_bytes"
QUALITY = "quality/nll"
QUALITY_MARGIN = 0.03
"""Log ratio of the held-out loss: 0.06 nat of 2 nat, 6 % of perplexity. What is paid for a model of
a third of the size; a bound far above it would also pass a model half as large."""

PREFILL_MARGIN = 0.15
"""Log ratio of TTFT on CUDA. A matrix is written out before each product with many rows: 59 us a
block of the 4 B model beside 520 us of products at 2,048 rows, 11 %. Whoever decodes in 4 bits pays
this once a request."""

NEAR_TIE_NAT = math.log(20.0)
"""Largest logit gap at which a stream may leave the reference's: a token that the reference finds a
twentieth as likely as its best, the cut below which min-p sampling (at 0.05) takes none."""


class Mxfp4Weights(DecodeLever):
    """Puts the quantiser in the site that stores the matrices."""

    name = "mxfp4_weights"
    summary = "decoder matrices in 4 bits (MXFP4), decoded inside the product"
    env = "LEVER_MXFP4_WEIGHTS"
    touches = (SITE,)
    claims = ParityClass.TOLERATED

    def policy(self, facts: Facts) -> GatingPolicy:
        """Throughput or the weights' memory must win, inside the bounds of quality and latency."""
        on_cpu = facts.device_type == "cpu"
        guards = [
            Guard("decode/ttft_ms/p95", PREFILL_MARGIN),
            Guard("decode/itl_ms/p95", LATENCY_MARGIN),
        ]
        if not on_cpu:
            guards.append(Guard("memory/peak_bytes", PEAK_MEMORY_MARGIN))
        if facts.parameters.get("quality") == "on":
            guards.append(Guard(QUALITY, QUALITY_MARGIN))
        return GatingPolicy(
            primaries=("decode/tok_s/c*", WEIGHT_BYTES),
            guards=tuple(guards),
            claims=ParityClass.TOLERATED,
            primary_margin=CPU_MARGIN if on_cpu else 0.01,
            near_tie_share=1.0,
            near_tie_gap_nat=NEAR_TIE_NAT,
            tolerance=TOLERANCE,
        )

    def unmet(self, facts: Facts, setting: str) -> tuple[str, ...]:
        """It needs its site, Triton on CUDA, and the quality of a model that has one."""
        reasons = super().unmet(facts, setting)
        trained = not str(facts.parameters.get("model", "")).startswith("random-")
        if setting != OFF and trained and facts.parameters.get("quality") == "off":
            reasons += ("quantised weights are judged by their quality: use --set quality=on",)
        return reasons

    def operation(self, site: Site, setting: str) -> Callable[..., Any]:
        """The quantiser."""
        del site, setting
        from levers.kernels.mxfp4_weights import keep_mxfp4

        return keep_mxfp4

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        """Products of 1 to 65 rows with fp64 of the same quantised weights as truth."""
        del setting
        from levers.kernels.mxfp4_cases import op_cases

        return op_cases(device)


LEVER = Mxfp4Weights()
