"""Split-KV decode attention over a KV cache: launcher, plain PyTorch form, fp64 truth.

Shape suffixes: B sequences, H query heads, K KV heads, G query heads per KV head, D head dimension,
P pages, S slots of a page, M pages of the longest sequence, X splits, N pages of one split.

One work item is one (sequence, KV head, split): it reads its piece of the keys and values once for
the whole group of query heads and leaves a partial result ``o`` with its log-sum-exp. A second pass
merges the partials: ``o = sum_x softmax_x(lse_x) o_x``. With one split there is no second pass. The
piece of a split is a whole number of KV blocks, as in flash-attention 2, so that late splits can be
empty; an empty split leaves ``lse = -inf``.

A contiguous cache ``[B, K, T, D]`` is one of a single page a sequence: its page is all of the
sequence's slots and the table is one column, the sequence's number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from levers.kernels.split_heuristic import OWN_RULE
from levers.kernels.split_kv_config import SplitConfig

LOWEST = torch.finfo(torch.float32).min
"""Stands for the maximum of a piece that is masked throughout, so that no NaN is made from it."""

Backend = Literal["torch", "triton"]


@dataclass(frozen=True, slots=True)
class PagedKV:
    """One layer's paged cache as a launch sees it.

    Attributes:
        k_PKSD, v_PKSD: the pages.
        table_BM: page numbers of each sequence in order (int32 or int64).
        lengths_B: tokens of each sequence, the newest included, at least 1 (int32).
    """

    k_PKSD: Tensor
    v_PKSD: Tensor
    table_BM: Tensor
    lengths_B: Tensor

    @property
    def page_size(self) -> int:
        """Slots of a page."""
        return self.k_PKSD.shape[2]

    @property
    def contiguous(self) -> bool:
        """Whether each sequence lies in one piece."""
        return self.table_BM.shape[1] == 1


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """How a launch is cut: ``num_splits`` pieces of ``tokens_per_split`` tokens.

    ``num_splits`` is ``OWN_RULE`` where the backend decides by itself.
    """

    num_splits: int
    tokens_per_split: int


def plan_splits(kv_tokens: int, kv_block: int, num_splits: int) -> SplitPlan:
    """Pieces of whole KV blocks for the capacity of the longest sequence.

    Raises:
        ValueError: fewer than one split.
    """
    if num_splits < min(1, OWN_RULE):
        raise ValueError(f"num_splits is {num_splits}; at least 1 is launched")
    blocks = max(1, math.ceil(kv_tokens / kv_block))
    return SplitPlan(num_splits, math.ceil(blocks / max(1, num_splits)) * kv_block)


class Workspace:
    """Preallocated partial results of the largest launch: ``o_XBHD`` and ``lse_XBH``, fp32.

    ``arrived_BH`` counts the programs that have left their partial, one counter a (sequence, KV
    head); whoever merges sets it back to zero, so that each launch finds zeros.

    The plain form also keeps room for the gathered pages of one work item: large blocks that are
    taken and given back at every item would cost page faults, and their time scatters.
    """

    def __init__(
        self, splits: int, batch: int, heads: int, head_dim: int, device: torch.device
    ) -> None:
        self._o = torch.zeros(splits * batch * heads * head_dim, device=device)
        self._lse = torch.zeros(splits * batch * heads, device=device)
        self.arrived_BH = torch.zeros(batch * heads, dtype=torch.int32, device=device)
        self._gathered: tuple[Tensor, Tensor] | None = None

    def partials(self, splits: int, batch: int, heads: int, dim: int) -> tuple[Tensor, Tensor]:
        """Views ``o_XBHD, lse_XBH`` of one launch.

        Raises:
            ValueError: the launch is larger than the workspace.
        """
        rows = splits * batch * heads
        if rows > self._lse.numel() or rows * dim > self._o.numel():
            raise ValueError(f"{splits} splits x {batch} x {heads} exceed the workspace")
        o_XBHD = self._o[: rows * dim].view(splits, batch, heads, dim)
        return o_XBHD, self._lse[:rows].view(splits, batch, heads)

    def gather(self, kv: PagedKV, pages_N: Tensor) -> tuple[Tensor, Tensor]:
        """Copies ``k_NKSD, v_NKSD`` of some pages, in fp32."""
        count, shape = pages_N.numel(), kv.k_PKSD.shape[1:]
        if self._gathered is None or self._gathered[0].shape[0] < count:
            like = kv.k_PKSD.new_zeros((count, *shape))
            self._gathered = like, like.clone()
        k_NKSD, v_NKSD = (one[:count] for one in self._gathered)
        torch.index_select(kv.k_PKSD, 0, pages_N, out=k_NKSD)
        torch.index_select(kv.v_PKSD, 0, pages_N, out=v_NKSD)
        return k_NKSD.float(), v_NKSD.float()


def decode_attention(
    q_BHD: Tensor,
    kv: PagedKV,
    plan: SplitPlan,
    out_BHD: Tensor,
    workspace: Workspace,
    backend: Backend,
    config: SplitConfig | None = None,
) -> int:
    """Attention of one query token per sequence; writes ``out_BHD``.

    Softmax scale is ``1 / sqrt(D)``. ``torch`` reads the lengths on the host and cannot be captured
    in a CUDA graph; ``triton`` can, and takes another layout than its own for benchmarks.

    Returns:
        The number of splits that were launched.

    Raises:
        ValueError: query heads that do not divide into KV heads, pieces that cut a page (the plain
            form takes whole ones), or a plan that leaves the number of splits to the backend, which
            has no rule of its own here.
    """
    check_heads(q_BHD, kv)
    if plan.num_splits == OWN_RULE:
        raise ValueError(
            f"the {backend} kernel has no split rule of its own; at least 1 is launched"
        )
    if backend == "triton":
        from levers.kernels import split_kv_triton

        return split_kv_triton.launch(q_BHD, kv, plan, out_BHD, workspace, config)
    if plan.tokens_per_split % kv.page_size and not kv.contiguous:
        raise ValueError(f"pieces of {plan.tokens_per_split} tokens cut pages of {kv.page_size}")
    return _launch_plain(q_BHD, kv, plan, out_BHD, workspace)


def check_heads(q_BHD: Tensor, kv: PagedKV) -> int:
    """The number of KV heads.

    Raises:
        ValueError: query heads that do not divide into them.
    """
    heads, kv_heads = q_BHD.shape[1], kv.k_PKSD.shape[1]
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads do not divide into {kv_heads} KV heads")
    return kv_heads


def _launch_plain(
    q_BHD: Tensor, kv: PagedKV, plan: SplitPlan, out_BHD: Tensor, workspace: Workspace
) -> int:
    """The plain PyTorch form: one iteration is one work item of the grid (all KV heads of it)."""
    batch, heads, dim = q_BHD.shape
    kv_heads = kv.k_PKSD.shape[1]
    o_XBHD, lse_XBH = workspace.partials(plan.num_splits, batch, heads, dim)
    q_BKGD = (q_BHD.float() / math.sqrt(dim)).view(batch, kv_heads, -1, dim)
    launched = 0
    for split in range(plan.num_splits):
        start = split * plan.tokens_per_split
        for row, length in enumerate(kv.lengths_B.tolist()):
            end = min(start + plan.tokens_per_split, length)
            o_KGD = o_XBHD[split, row].view(kv_heads, -1, dim)
            lse_KG = lse_XBH[split, row].view(kv_heads, -1)
            if end > start:
                k_NKSD, v_NKSD, filled = _piece(kv, row, start, end, workspace)
                _partial(q_BKGD[row], k_NKSD, v_NKSD, filled, o_KGD, lse_KG)
            else:
                o_KGD.zero_()
                lse_KG.fill_(LOWEST)
        launched += 1
    if launched == 1:
        out_BHD.copy_(o_XBHD[0])
    else:
        merge(o_XBHD, lse_XBH, out_BHD)
    return launched


def _piece(
    kv: PagedKV, row: int, start: int, end: int, workspace: Workspace
) -> tuple[Tensor, Tensor, int]:
    """Tokens ``start .. end`` of a sequence in fp32, and how full the last page is (0: all of it).

    A piece of a contiguous cache is a part of its one page, taken as a page of its own and never
    written.
    """
    if kv.contiguous:
        page = int(kv.table_BM[row, 0])
        k_KSD, v_KSD = (x[page, :, start:end].float() for x in (kv.k_PKSD, kv.v_PKSD))
        return k_KSD.unsqueeze(0), v_KSD.unsqueeze(0), 0
    pages_N = kv.table_BM[row, start // kv.page_size : -(-end // kv.page_size)]
    return *workspace.gather(kv, pages_N), end % kv.page_size


def _partial(
    q_KGD: Tensor, k_NKSD: Tensor, v_NKSD: Tensor, filled: int, o_KGD: Tensor, lse_KG: Tensor
) -> None:
    """One piece of one sequence; writes ``o_KGD`` and ``lse_KG``.

    ``filled`` is the number of slots in use on the last page, 0 where all are.

    Sums run over the slots of a page first and over the pages then, so that the error of a sum does
    not depend on how many pages a split has.
    """
    count, kv_heads, size, dim = k_NKSD.shape
    q_NKGD = q_KGD.expand(count, *q_KGD.shape).reshape(count * kv_heads, -1, dim)
    p_NKGS = torch.bmm(q_NKGD, k_NKSD.flatten(0, 1).mT).view(count, kv_heads, -1, size)
    if filled:
        p_NKGS[-1, :, :, filled:] = -math.inf
        v_NKSD[-1, :, filled:] = 0.0
    m_KG = p_NKGS.amax(dim=(0, 3)).clamp_(min=LOWEST)
    p_NKGS.sub_(m_KG.unsqueeze(-1)).exp_()
    l_KG = p_NKGS.sum(dim=(0, 3)).clamp_(min=1.0)
    pages_o = torch.bmm(p_NKGS.view(count * kv_heads, -1, size), v_NKSD.flatten(0, 1))
    torch.sum(pages_o.view(count, *o_KGD.shape), dim=0, out=o_KGD)
    o_KGD.div_(l_KG.unsqueeze(-1))
    torch.add(m_KG, l_KG.log_(), out=lse_KG)


def merge(o_XBHD: Tensor, lse_XBH: Tensor, out_BHD: Tensor) -> None:
    """Merge the partials through their log-sum-exp."""
    weight_XBH = torch.softmax(lse_XBH, dim=0)
    out_BHD.copy_((o_XBHD * weight_XBH.unsqueeze(-1)).sum(dim=0))


def truth(q_BHD: Tensor, kv: PagedKV) -> Tensor:
    """The same attention in fp64, unsplit, ``[B, H, D]``."""
    heads, dim = q_BHD.shape[1:]
    group = heads // kv.k_PKSD.shape[1]
    rows = []
    for row, length in enumerate(kv.lengths_B.tolist()):
        pages = kv.table_BM[row, : -(-length // kv.page_size)].long()
        k_KTD = kv.k_PKSD[pages].double().transpose(0, 1).flatten(1, 2)[:, :length]
        v_KTD = kv.v_PKSD[pages].double().transpose(0, 1).flatten(1, 2)[:, :length]
        k_HTD, v_HTD = (x.repeat_interleave(group, dim=0) for x in (k_KTD, v_KTD))
        scores_HT = (k_HTD @ q_BHD[row].double().unsqueeze(-1)).squeeze(-1) / math.sqrt(dim)
        rows.append((scores_HT.softmax(dim=-1).unsqueeze(1) @ v_HTD).squeeze(1))
    return torch.stack(rows)
