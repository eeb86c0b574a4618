"""The two KV caches: pages with a block table, and contiguous rows (also the oracle's).

Shape suffixes: L layers, B slots of the batch, P pages, M pages of a slot, S slots of a page, K KV
heads, D head dimension, T tokens, N new tokens, R rows of all pages, slots and KV heads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.workloads.decode.config import ModelConfig
from levers.kernels.split_kv import PagedKV


class PagedCache:
    """Pages of every layer, a free list, and the block table of each slot.

    Pages are handed out in a seeded random order, so that a sequence's pages do not lie side by
    side, as after hours of serving. All memory is taken and written once here (pre-touched).
    """

    def __init__(
        self,
        config: ModelConfig,
        slots: int,
        capacity_tokens: int,
        page_size: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.slots, self.device, self.dtype = slots, device, dtype
        self.page_size = page_size
        self.pages_per_slot = -(-capacity_tokens // page_size)
        pages = slots * self.pages_per_slot
        shape = (pages, config.num_kv_heads, page_size, config.head_dim)
        self.k_LPKSD = [
            torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_layers)
        ]
        self.v_LPKSD = [
            torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_layers)
        ]
        self.table_BM = torch.zeros(slots, self.pages_per_slot, dtype=torch.int32, device=device)
        order = torch.randperm(pages, generator=torch.Generator().manual_seed(pages))
        self._free = order.tolist()
        self._held: dict[int, list[int]] = {}
        self._head_dim = config.head_dim
        self._head_rows = torch.arange(config.num_kv_heads, device=device) * page_size
        self._span = torch.arange(self.pages_per_slot * page_size, device=device)
        self._page_rows = config.num_kv_heads * page_size
        self._base_BT = torch.zeros(slots, len(self._span), dtype=torch.int64, device=device)

    def admit(self, slot: int) -> None:
        """Give a slot fresh pages; those it held go back to the end of the free list."""
        self._free.extend(self._held.pop(slot, []))
        taken, self._free = self._free[: self.pages_per_slot], self._free[self.pages_per_slot :]
        self._held[slot] = taken
        self.table_BM[slot] = torch.tensor(taken, dtype=torch.int32)
        pages_T = self.table_BM[slot].long()[self._span // self.page_size]
        self._base_BT[slot] = pages_T * self._page_rows + self._span % self.page_size

    def rows(self, slots_N: Tensor, positions_N: Tensor) -> Tensor:
        """Rows ``[N * K]`` of the flat cache where tokens at these positions are kept.

        Looked up, since a step has few operations to spare: two launches in place of nine.
        """
        return (self._base_BT[slots_N, positions_N][:, None] + self._head_rows).flatten()

    def write(self, layer: int, rows: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> None:
        """Store new keys and values in one layer at rows from :meth:`rows`."""
        k_RD, v_RD = self.flat(layer)
        k_RD.index_copy_(0, rows, k_NKD.reshape(-1, self._head_dim))
        v_RD.index_copy_(0, rows, v_NKD.reshape(-1, self._head_dim))

    def flat(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer as rows ``k_RD, v_RD``."""
        width = self._head_dim
        return self.k_LPKSD[layer].view(-1, width), self.v_LPKSD[layer].view(-1, width)

    def layer(self, layer: int, count: int, lengths_B: Tensor) -> PagedKV:
        """The first ``count`` slots of one layer, as the kernels see them."""
        return PagedKV(self.k_LPKSD[layer], self.v_LPKSD[layer], self.table_BM[:count], lengths_B)


class ContiguousCache:
    """Keys and values of each slot in one piece, ``[B, K, T, D]`` a layer."""

    def __init__(
        self,
        config: ModelConfig,
        slots: int,
        capacity_tokens: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.slots, self.device, self.dtype = slots, device, dtype
        shape = (slots, config.num_kv_heads, capacity_tokens, config.head_dim)
        self.k_LBKTD = [
            torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_layers)
        ]
        self.v_LBKTD = [
            torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_layers)
        ]
        self._head_dim = config.head_dim
        self._head_rows = torch.arange(config.num_kv_heads, device=device) * capacity_tokens
        self._slot_rows = config.num_kv_heads * capacity_tokens
        self._table_B1 = torch.arange(slots, dtype=torch.int32, device=device)[:, None]

    def admit(self, slot: int) -> None:
        """Nothing to hand out: each slot owns its rows."""

    def rows(self, slots_N: Tensor, positions_N: Tensor) -> Tensor:
        """Rows ``[N * K]`` of the flat cache where tokens at these positions are kept."""
        base_N = torch.add(positions_N, slots_N, alpha=self._slot_rows)
        return (base_N[:, None] + self._head_rows).flatten()

    def write(self, layer: int, rows: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> None:
        """Store new keys and values in one layer at rows from :meth:`rows`."""
        k_RD, v_RD = self.flat(layer)
        k_RD.index_copy_(0, rows, k_NKD.reshape(-1, self._head_dim))
        v_RD.index_copy_(0, rows, v_NKD.reshape(-1, self._head_dim))

    def flat(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer as rows ``k_RD, v_RD``."""
        width = self._head_dim
        return self.k_LBKTD[layer].view(-1, width), self.v_LBKTD[layer].view(-1, width)

    def layer(self, layer: int, count: int, lengths_B: Tensor) -> PagedKV:
        """The first ``count`` slots of one layer: each a single page that holds all of its rows."""
        k_BKTD, v_BKTD = self.k_LBKTD[layer], self.v_LBKTD[layer]
        return PagedKV(k_BKTD, v_BKTD, self._table_B1[:count], lengths_B)
