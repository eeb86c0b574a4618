"""Least memory traffic of a training step beside its products and attentions, in closed form.

As the FLOPs of a step count useful work alone, so do these bytes: each row-wise operation reads
what it needs once and writes its result once, in the stream's bf16, and what follows on it at once
has it in registers. A step that gathers, casts or keeps intermediates moves more in that time, and
so reaches less of the copy's ceiling.
"""

from __future__ import annotations

from experiments.workloads.flow.config import FlowConfig

ROW_BYTES = 2
"""Bytes of an element of the stream (bf16)."""

FORWARD_ROWS, FORWARD_HIDDEN = 18, 2
"""Elements per latent token of one block's forward, in units of the width and of the MLP's.

A branch added to the stream and the norm of the sum 4 (two read; sum and normed rows written),
three times, of which one joins this block to the next; queries and keys normed and turned 4; the
cross-attention's queries 2. GELU reads and writes the hidden layer.
"""

BACKWARD_ROWS, BACKWARD_HIDDEN = 25, 3
"""The same backward.

Residual and norm 6 with a gate (the gradients of the norm and of the stream, sum and branch read,
the gradients of stream and branch written), twice, and 4 without one, where both are one; queries
and keys 6; the cross-attention's queries 3. GELU 3.
"""

CONDITION_ROWS = 5
"""Elements per condition token, in units of the width: its keys are normed, 2 forward, 3 backward.
"""

UPDATE_BYTES = 7 * 4
"""Of AdamW in fp32 per parameter: weight, gradient and two moments read, all but the gradient
written (Loshchilov and Hutter 2019, algorithm 2)."""


def row_bytes(config: FlowConfig) -> float:
    """Of the row-wise work of one step, forward and backward; recomputation is no useful work."""
    rows = (FORWARD_ROWS + BACKWARD_ROWS) * config.channels
    hidden = (FORWARD_HIDDEN + BACKWARD_HIDDEN) * config.mlp
    condition = CONDITION_ROWS * config.channels * config.cond_tokens * config.samples
    return float(ROW_BYTES * config.depth * (sum(config.lengths) * (rows + hidden) + condition))


def optimiser_bytes(config: FlowConfig) -> float:
    """Of one update of the trained weights; 0 where the step has none."""
    if config.optimizer != "adamw":
        return 0.0
    shared = 6 * config.channels**2
    blocks = config.parameter_count - shared
    trained = blocks * (config.depth - config.frozen) / config.depth
    return UPDATE_BYTES * (trained + (0 if config.frozen else shared))
