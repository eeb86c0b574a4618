"""The attention of one decode step: our split-KV over either cache, and the oracle's ``sdpa``.

Both write the new token's keys and values and attend to the whole sequence. The split rule and the
kernel are sites that a lever may change; the launcher reports what it really launched.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from experiments.workloads.decode.caches import ContiguousCache, PagedCache
from experiments.workloads.decode.config import ModelConfig
from experiments.workloads.decode.names import SPLIT_RULE, SPLIT_RULE_CONTIGUOUS
from experiments.workloads.decode.sites import DecodeSites
from levers.kernels.split_heuristic import DecodeShape
from levers.kernels.split_kv import Workspace, plan_splits


class StepAttention(Protocol):
    """Attention and cache of the decode step, for one batch at a time."""

    @property
    def cache(self) -> PagedCache | ContiguousCache:
        """Where the keys and values are kept."""

    def plan(self, count: int) -> None:
        """Set up for steps of ``count`` slots."""

    def begin(self, slots_B: Tensor, positions_B: Tensor) -> None:
        """What all layers of one step share: where the new token goes, lengths, masks."""

    def __call__(self, layer: int, q_BHD: Tensor, k_BKD: Tensor, v_BKD: Tensor) -> Tensor:
        """Store the new token and attend, ``o_BHD``."""


class SplitAttention:
    """Split-KV over pages or contiguous rows, each launch site with a split rule of its own.

    The split count is planned once a batch, from the capacity.
    """

    def __init__(
        self,
        config: ModelConfig,
        cache: PagedCache | ContiguousCache,
        sites: DecodeSites,
        kv_block: int,
        capacity_tokens: int,
        sm_count: int,
    ) -> None:
        self.cache, self._sites = cache, sites
        paged = isinstance(cache, PagedCache)
        self._rule = sites.by_name[SPLIT_RULE if paged else SPLIT_RULE_CONTIGUOUS]
        self._config, self._kv_block = config, kv_block
        self._capacity, self._sm_count = capacity_tokens, sm_count
        slots, device, dtype = cache.slots, cache.device, cache.dtype
        splits = max(1, -(-capacity_tokens // kv_block))
        self._workspace = Workspace(
            min(128, splits), slots, config.num_q_heads, config.head_dim, device
        )
        self._every_length_B = torch.zeros(slots, dtype=torch.int32, device=device)
        self._out_BHD = torch.zeros(
            slots, config.num_q_heads, config.head_dim, device=device, dtype=dtype
        )

    def plan(self, count: int) -> None:
        """Ask the split rule, once for all layers and steps of this batch."""
        shape = DecodeShape(
            batch=count,
            kv_heads=self._config.num_kv_heads,
            kv_tokens=self._capacity,
            kv_block=self._kv_block,
            sm_count=self._sm_count,
            query_heads=self._config.num_q_heads,
        )
        self._count = count
        self._plan = plan_splits(self._capacity, self._kv_block, self._rule.launch(shape))

    def begin(self, slots_B: Tensor, positions_B: Tensor) -> None:
        """Rows of the new tokens and the lengths that the kernel reads."""
        self._rows = self.cache.rows(slots_B, positions_B)
        self._lengths_B = self._every_length_B[: len(positions_B)]
        torch.add(positions_B, 1, out=self._lengths_B)

    def __call__(self, layer: int, q_BHD: Tensor, k_BKD: Tensor, v_BKD: Tensor) -> Tensor:
        """Store the new token and attend."""
        self.cache.write(layer, self._rows, k_BKD, v_BKD)
        return self.attend_stored(layer, q_BHD)

    def places(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """For a kernel that stores the new token itself: keys and values of the layer as rows.

        Returns:
            ``k_RD, v_RD``, and the row of each token and KV head of this step, ``[B * K]``.
        """
        return *self.cache.flat(layer), self._rows

    def attend_stored(self, layer: int, q_BHD: Tensor) -> Tensor:
        """Launch the kernel over what is stored, and report the splits it was launched with."""
        out_BHD = self._out_BHD[: self._count]
        kv = self.cache.layer(layer, self._count, self._lengths_B)
        self._sites.attention(self._rule, q_BHD, kv, self._plan, out_BHD, self._workspace)
        return out_BHD


class SdpaAttention:
    """PyTorch's own attention over contiguous rows; no page is gathered in the step.

    The query heads of one KV head are given as query tokens, so that grouped heads need no copy of
    keys and values.
    """

    def __init__(self, config: ModelConfig, cache: ContiguousCache) -> None:
        self.cache, self._config = cache, config
        device = cache.k_LBKTD[0].device
        self._span = torch.arange(cache.k_LBKTD[0].shape[2], device=device)

    def plan(self, count: int) -> None:
        """Nothing is chosen here: PyTorch selects its kernel."""
        del count

    def begin(self, slots_B: Tensor, positions_B: Tensor) -> None:
        """Rows of the new tokens, and the additive mask of each sequence's length."""
        self._rows = self.cache.rows(slots_B, positions_B)
        masked = self._span[None, :] > positions_B[:, None]
        dtype = self.cache.k_LBKTD[0].dtype
        mask_BT = torch.zeros(masked.shape, device=masked.device, dtype=dtype)
        self._mask_B11T = mask_BT.masked_fill_(masked, -math.inf)[:, None, None]

    def __call__(self, layer: int, q_BHD: Tensor, k_BKD: Tensor, v_BKD: Tensor) -> Tensor:
        """Store the new token and attend."""
        self.cache.write(layer, self._rows, k_BKD, v_BKD)
        batch, heads, dim = q_BHD.shape
        q_BKGD = q_BHD.view(batch, self._config.num_kv_heads, -1, dim)
        k_BKTD = self.cache.k_LBKTD[layer][:batch]
        v_BKTD = self.cache.v_LBKTD[layer][:batch]
        mask = self._mask_B11T.expand(-1, -1, q_BKGD.shape[2], -1)
        out = functional.scaled_dot_product_attention(q_BKGD, k_BKTD, v_BKTD, attn_mask=mask)
        return out.reshape(batch, heads, dim)
