"""The decoder at work: prefill a slot, decode all slots by one token, eagerly or captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from experiments.workloads.decode.attention import StepAttention
from experiments.workloads.decode.config import ModelConfig
from experiments.workloads.decode.model import (
    Weights,
    causal_attention,
    hidden_states,
    logits,
    rope_tables,
)


class DecodeEngine:
    """A decoder with a fixed number of slots; greedy, the lowest token index wins a tie.

    ``tokens_B``, ``positions_B`` (where the next token goes) and ``active_B`` are static buffers:
    a captured step reads and advances them in place.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        attention: StepAttention,
        slots: int,
        capacity_tokens: int,
    ) -> None:
        self.config, self.weights, self.attention = config, weights, attention
        self.slots, self.capacity_tokens = slots, capacity_tokens
        device = weights.device
        self._rope = rope_tables(config, capacity_tokens + 1, device, weights.dtype)
        self.tokens_B = torch.zeros(slots, dtype=torch.int64, device=device)
        self.positions_B = torch.zeros(slots, dtype=torch.int64, device=device)
        self.active_B = torch.ones(slots, dtype=torch.int64, device=device)
        self._slots_B = torch.arange(slots, device=device)
        self.logits_BV = torch.zeros(slots, config.vocab_size, device=device, dtype=weights.dtype)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    @torch.inference_mode()
    def prefill(self, slot: int, prompt: Sequence[int]) -> int:
        """Fill a slot's cache with a prompt and return the first token."""
        first = self.prefill_logits(slot, prompt).argmax()
        self.tokens_B[slot] = first
        self.positions_B[slot] = len(prompt)
        return int(first)

    @torch.inference_mode()
    def prefill_logits(self, slot: int, prompt: Sequence[int]) -> Tensor:
        """Fill a slot's cache and return the last position's logits ``[V]``."""
        device = self.weights.device
        tokens_T = torch.tensor(prompt, dtype=torch.int64, device=device)
        positions_T = torch.arange(len(prompt), device=device)
        rows = self.attention.cache.rows(torch.full_like(positions_T, slot), positions_T)

        def attend(layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
            self.attention.cache.write(layer, rows, k_TKD, v_TKD)
            return causal_attention(q_THD, k_TKD, v_TKD, batch=1)

        rope = self._rope.at(positions_T)
        x_TC = hidden_states(self.config, self.weights, tokens_T, rope, attend)
        return logits(self.weights, x_TC[-1])

    def plan(self, axis: str, count: int) -> None:
        """Prepare steps of the first ``count`` slots, observed on ``axis``."""
        self.attention.plan(axis, count)

    @torch.inference_mode()
    def step(self, count: int) -> Tensor:
        """Decode the first ``count`` slots by one token and return ``tokens_B`` (on the device)."""
        positions_B = self.positions_B[:count]
        self.attention.begin(self._slots_B[:count], positions_B)
        x_BC = hidden_states(
            self.config,
            self.weights,
            self.tokens_B[:count],
            self._rope.at(positions_B),
            self.attention,
        )
        logits_BV = self.logits_BV[:count]
        logits_BV.copy_(logits(self.weights, x_BC))
        torch.argmax(logits_BV, dim=-1, out=self.tokens_B[:count])
        positions_B.add_(self.active_B[:count])
        return self.tokens_B[:count]

    @torch.inference_mode()
    def capture(self, count: int) -> Callable[[], Tensor]:
        """A CUDA graph of the step of ``count`` slots, as a function that replays it.

        The buffers hold what they held before once the capture is done.
        """
        saved = [buffer.clone() for buffer in (self.tokens_B, self.positions_B)]
        stream: torch.cuda.Stream = torch.cuda.Stream(  # type: ignore[no-untyped-call]
            device=self.weights.device
        )
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.step(count)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step(count)
        self.tokens_B.copy_(saved[0])
        self.positions_B.copy_(saved[1])
        self._graphs[count] = graph

        def replay() -> Tensor:
            graph.replay()
            return self.tokens_B[:count]

        return replay
