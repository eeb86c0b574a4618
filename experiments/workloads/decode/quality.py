"""The loss of a trained model on held-out text, teacher-forced: what a quantised weight may cost.

Deterministic: the same text through the same weights, once a process. It runs as a prefill does.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from experiments.workloads.decode.engine import DecodeEngine

LOGIT_ROWS = 512
"""Positions whose logits are held at a time: 512 x 151936 x 4 bytes are 311 MB."""
CPU_TOKENS, CUDA_TOKENS = 1664, 32768
"""About how much text is read: on one core a fifth of a second of the shipped model."""


@torch.inference_mode()
def held_out_nll(engine: DecodeEngine, texts: Sequence[Sequence[int]]) -> float:
    """Mean cross entropy of each next token, in nat, over all texts; slot 0 is overwritten."""
    total, count = 0.0, 0
    for text in texts:
        states_TC = engine.prefill_states(0, text[:-1])
        targets_T = torch.tensor(text[1:], dtype=torch.int64, device=engine.device)
        for at in range(0, len(targets_T), LOGIT_ROWS):
            logits_NV = engine.logits_of(states_TC[at : at + LOGIT_ROWS]).float()
            losses = functional.cross_entropy(
                logits_NV, targets_T[at : at + LOGIT_ROWS], reduction="sum"
            )
            total += float(losses)
        count += len(targets_T)
    return total / count
