"""The decoder at work: prefill a slot, decode all slots by one token, eagerly or captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from experiments.workloads.decode.attention import StepAttention
from experiments.workloads.decode.model import Decoder, Weights
from experiments.workloads.decode.operations import causal_attention, rope_tables
from experiments.workloads.decode.weights import LazyDecoder, LoadedDecoder


class DecodeEngine:
    """A decoder with a fixed number of slots; greedy, the lowest token index wins a tie.

    ``tokens_B``, ``positions_B`` (where the next token goes) and ``active_B`` are static buffers:
    a captured step reads and advances them in place.
    """

    def __init__(
        self,
        decoder: LazyDecoder | LoadedDecoder,
        attention: StepAttention,
        slots: int,
        capacity_tokens: int,
    ) -> None:
        self.config, self.sites = decoder.config, decoder.sites
        self.device, self.dtype = decoder.device, decoder.dtype
        self.attention = attention
        self.slots, self.capacity_tokens = slots, capacity_tokens
        self.decoder = decoder
        config, device, dtype = self.config, self.device, self.dtype
        self._rope = rope_tables(config, capacity_tokens + 1, device, dtype)
        self.tokens_B = torch.zeros(slots, dtype=torch.int64, device=device)
        self.positions_B = torch.zeros(slots, dtype=torch.int64, device=device)
        self.active_B = torch.ones(slots, dtype=torch.int64, device=device)
        self._slots_B = torch.arange(slots, device=device)
        self.logits_BV = torch.zeros(slots, config.vocab_size, device=device, dtype=dtype)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._loads = 0

    @property
    def weights(self) -> Weights:
        """The weights in use."""
        return self._decoder().weights

    def _decoder(self) -> Decoder:
        """The decoder; graphs that read weights which are no longer there are dropped."""
        decoder = self.decoder.get()
        if self._loads != self.decoder.loads:
            self._graphs.clear()
            self._loads = self.decoder.loads
        return decoder

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
        return self.logits_of(self.prefill_states(slot, prompt)[-1:])[0]

    def prefill_states(self, slot: int, prompt: Sequence[int]) -> Tensor:
        """Fill a slot's cache and return the hidden states of all positions, ``[T, C]``."""
        decoder = self._decoder()
        tokens_T = torch.tensor(prompt, dtype=torch.int64, device=self.device)
        positions_T = torch.arange(len(prompt), device=self.device)
        rows = self.attention.cache.rows(torch.full_like(positions_T, slot), positions_T)

        def attend(layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
            self.attention.cache.write(layer, rows, k_TKD, v_TKD)
            return causal_attention(q_THD, k_TKD, v_TKD, batch=1)

        return decoder.hidden_states(tokens_T, self._rope.at(positions_T), attend)

    def logits_of(self, x_NC: Tensor) -> Tensor:
        """Logits of hidden states, ``[N, V]``."""
        return self._decoder().logits(x_NC)

    def plan(self, count: int) -> None:
        """Prepare steps of the first ``count`` slots."""
        self.attention.plan(count)

    @torch.inference_mode()
    def step(self, count: int) -> Tensor:
        """Decode the first ``count`` slots by one token and return ``tokens_B`` (on the device)."""
        decoder = self._decoder()
        positions_B = self.positions_B[:count]
        self.attention.begin(self._slots_B[:count], positions_B)
        x_BC = decoder.hidden_states(
            self.tokens_B[:count], self._rope.at(positions_B), self.attention
        )
        logits_BV = self.logits_BV[:count]
        logits_BV.copy_(decoder.logits(x_BC))
        torch.argmax(logits_BV, dim=-1, out=self.tokens_B[:count])
        positions_B.add_(self.active_B[:count])
        return self.tokens_B[:count]

    def eager(self, count: int) -> Callable[[], Tensor]:
        """The step of ``count`` slots as a function that runs it operation by operation."""

        def run() -> Tensor:
            self.sites.step_ran("eager")
            return self.step(count)

        return run

    def captured(self, count: int) -> Callable[[], Tensor]:
        """The step of ``count`` slots as a function that replays its CUDA graph.

        A graph is captured once for each count, and again after :meth:`forget_graphs` or other
        weights.
        """
        self._decoder()
        if count not in self._graphs:
            self._graphs[count] = self._capture(count)
        graph = self._graphs[count]

        def replay() -> Tensor:
            self.sites.step_ran("captured")
            graph.replay()
            return self.tokens_B[:count]

        return replay

    @property
    def holds_graphs(self) -> bool:
        """Whether any step was captured."""
        return bool(self._graphs)

    def forget_graphs(self) -> None:
        """Drop the captured graphs: each holds the kernels and split counts of its setting."""
        self._graphs.clear()

    @torch.inference_mode()
    def _capture(self, count: int) -> torch.cuda.CUDAGraph:
        """Record one step; the buffers hold what they held before once that is done."""
        saved = [buffer.clone() for buffer in (self.tokens_B, self.positions_B)]
        stream: torch.cuda.Stream = torch.cuda.Stream(  # type: ignore[no-untyped-call]
            device=self.device
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
        return graph
