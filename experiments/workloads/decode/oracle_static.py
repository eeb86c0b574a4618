"""A batch of transformers' greedy decoding over a static cache: prefill, step, capture.

The prompts of a batch are padded on the left, as ``generate`` does it, and the mask of a step is
made outside the compiled forward, as ``generate`` prepares it. Shape suffixes: B slots, T tokens of
the longest prompt, Q of them in one call, S positions of the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from experiments.workloads.decode.oracle_model import cache_keyword, transformers_module
from levers.errors import BadParameter

PREFILL_TOKENS = 16384
"""Tokens of all slots in one call of a prefill: the masks of longer ones would take gigabytes."""
WARM_STEPS = 2
"""Steps on the stream of a capture, which must find its memory there; what is compiled was run
before, in :meth:`StaticDecoder.step`."""


class StaticDecoder:
    """``slots`` sequences over one static cache of ``capacity_tokens`` positions each.

    Args:
        model: a causal language model of transformers.
        slots: sequences of the batch.
        capacity_tokens: positions of the cache.
        forward: what a step calls, the compiled ``model.forward`` or the model's own.
    """

    def __init__(
        self, model: Any, slots: int, capacity_tokens: int, forward: Callable[..., Any]
    ) -> None:
        self._model, self._forward, self.slots = model, forward, slots
        device = next(model.parameters()).device
        self._device = device
        self._keyword = cache_keyword(model)
        self._cache = transformers_module().StaticCache(
            config=model.config, max_cache_len=capacity_tokens
        )
        self.tokens_B1 = torch.zeros(slots, 1, dtype=torch.int64, device=device)
        self._positions_B1 = torch.zeros(slots, 1, dtype=torch.int64, device=device)
        self._pad_B1 = torch.zeros(slots, 1, dtype=torch.int64, device=device)
        self._column = torch.zeros(1, dtype=torch.int64, device=device)
        self._span_S = torch.arange(capacity_tokens, device=device)
        self._start: tuple[Tensor, Tensor, int] | None = None
        self._graph: torch.cuda.CUDAGraph | None = None

    @property
    def captured(self) -> bool:
        """Whether steps are replayed from a graph."""
        return self._graph is not None

    def _call(self, forward: Callable[..., Any], **named: Any) -> Tensor:
        """Logits of the last position, ``[B, V]``."""
        named |= {self._keyword: self._cache, "use_cache": True, "logits_to_keep": 1}
        logits_B1V: Tensor = forward(**named).logits
        return logits_B1V[:, -1]

    @torch.no_grad()
    def first_token(self, prompt: Sequence[int]) -> int:
        """Prefill one unpadded prompt into an emptied cache; the caller empties it beforehand."""
        tokens_1T = torch.tensor([list(prompt)], dtype=torch.int64, device=self._device)
        return int(self._call(self._model.forward, input_ids=tokens_1T).argmax())

    def empty(self) -> None:
        """Forget every sequence."""
        self._cache.reset()

    @torch.no_grad()
    def prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        """Fill the cache with one prompt for each slot and choose each first token."""
        if len(prompts) != self.slots:
            raise ValueError(f"{len(prompts)} prompts for {self.slots} slots")
        longest = max(len(prompt) for prompt in prompts)
        rows = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
        lengths_B1 = torch.tensor([[len(p)] for p in prompts], device=self._device)
        self._pad_B1.copy_(longest - lengths_B1)
        self.empty()
        tokens_BT = torch.tensor(rows, dtype=torch.int64, device=self._device)
        columns_T = torch.arange(longest, device=self._device)
        for columns_Q in torch.split(columns_T, self._piece()):
            logits_BV = self._call(
                self._model.forward,
                input_ids=tokens_BT[:, columns_Q],
                attention_mask=self._mask(columns_Q),
                position_ids=(columns_Q - self._pad_B1).clamp(min=0),
            )
        self.tokens_B1.copy_(logits_BV.argmax(-1, keepdim=True))
        self._start = (self.tokens_B1.clone(), lengths_B1, longest)
        self.rewind()

    def _piece(self) -> int:
        """Tokens of each slot in one call of a prefill."""
        return max(1, PREFILL_TOKENS // self.slots)

    def _mask(self, columns_Q: Tensor) -> Tensor:
        """``[B, 1, Q, S]``: a token sees its sequence up to itself; padding sees itself alone."""
        seen_QS = self._span_S <= columns_Q[:, None]
        own_QS = self._span_S == columns_Q[:, None]
        real_BS = self._span_S >= self._pad_B1
        return ((seen_QS & real_BS[:, None]) | own_QS)[:, None]

    def rewind(self) -> None:
        """Go back to the end of the prompts: what was decoded since is overwritten."""
        if self._start is None:
            raise ValueError("nothing was prefilled")
        tokens_B1, lengths_B1, longest = self._start
        self.tokens_B1.copy_(tokens_B1)
        self._positions_B1.copy_(lengths_B1)
        self._column.fill_(longest)
        for layer in self._cache.layers:
            filled = getattr(layer, "cumulative_length", None)
            if not isinstance(filled, Tensor):
                raise BadParameter(
                    "this version's static cache cannot be rewound in place",
                    cure="use transformers 5.17 or newer",
                )
            filled.fill_(longest)

    @torch.no_grad()
    def step(self) -> Tensor:
        """Decode every slot by one token and return ``tokens_B1`` (on the device)."""
        if self._graph is not None:
            self._graph.replay()
            return self.tokens_B1
        logits_BV = self._next_logits(self._forward)
        torch.argmax(logits_BV, dim=-1, keepdim=True, out=self.tokens_B1)
        self._positions_B1.add_(1)
        self._column.add_(1)
        return self.tokens_B1

    def _next_logits(self, forward: Callable[..., Any]) -> Tensor:
        """Logits of every slot's next token, ``[B, V]``."""
        return self._call(
            forward,
            input_ids=self.tokens_B1,
            attention_mask=self._mask(self._column),
            position_ids=self._positions_B1,
        )

    @torch.no_grad()
    def difference(self) -> float:
        """How far the logits of this decoder's step are from those of the eager model, in L2.

        Both compute the first step; relative to the eager logits. The sequences are as after the
        prefill.
        """
        found = []
        for forward in (self._forward, self._model.forward):
            self.rewind()
            found.append(self._next_logits(forward).float())
        self.rewind()
        return float((found[0] - found[1]).norm() / found[1].norm())

    @torch.no_grad()
    def capture(self) -> None:
        """Replay steps from a CUDA graph from now on; the sequences are as after the prefill."""
        stream: torch.cuda.Stream = torch.cuda.Stream(  # type: ignore[no-untyped-call]
            device=self._device
        )
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_STEPS):
                self.rewind()
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        self._graph = graph
        self.rewind()
