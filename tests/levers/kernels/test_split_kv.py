from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from levers.kernels.split_heuristic import OWN_RULE
from levers.kernels.split_kv import (
    PagedKV,
    Workspace,
    decode_attention,
    merge,
    plan_splits,
    truth,
)

PAGE = 16
HEADS, KV_HEADS, DIM = 4, 2, 8


def cache(lengths: list[int], capacity: int, seed: int = 0) -> tuple[torch.Tensor, PagedKV]:
    draw = torch.Generator().manual_seed(seed)
    per_slot = -(-capacity // PAGE)
    pages = len(lengths) * per_slot
    shape = (pages, KV_HEADS, PAGE, DIM)
    table = torch.randperm(pages, generator=draw).view(len(lengths), per_slot).to(torch.int32)
    k, v = (torch.randn(shape, generator=draw) for _ in "kv")
    q = torch.randn(len(lengths), HEADS, DIM, generator=draw)
    return q, PagedKV(k, v, table, torch.tensor(lengths, dtype=torch.int32))


def attend(q: torch.Tensor, kv: PagedKV, capacity: int, splits: int) -> tuple[torch.Tensor, int]:
    out = torch.full_like(q, math.nan)
    workspace = Workspace(splits, q.shape[0], HEADS, DIM, q.device)
    plan = plan_splits(capacity, PAGE, splits)
    return out, decode_attention(q, kv, plan, out, workspace, "torch")


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 112), min_size=1, max_size=3),
    splits=st.integers(1, 9),
    seed=st.integers(0, 1000),
)
def test_any_number_of_splits_gives_the_attention(
    lengths: list[int], splits: int, seed: int
) -> None:
    q, kv = cache(lengths, 112, seed)
    out, launched = attend(q, kv, 112, splits)
    assert launched == splits
    torch.testing.assert_close(out.double(), truth(q, kv), rtol=1e-5, atol=1e-6)


def test_truth_is_pytorchs_own_attention() -> None:
    q, kv = cache([PAGE * 3], PAGE * 3)
    pages = kv.table_BM[0].long()
    k, v = (
        x[pages].transpose(0, 1).flatten(1, 2).repeat_interleave(HEADS // KV_HEADS, dim=0)
        for x in (kv.k_PKSD, kv.v_PKSD)
    )
    own = torch.nn.functional.scaled_dot_product_attention(
        q[0].double().unsqueeze(1), k.double(), v.double()
    )
    torch.testing.assert_close(truth(q, kv)[0], own.squeeze(1))


def test_the_slots_beyond_a_length_are_never_read() -> None:
    q, kv = cache([PAGE + 5], PAGE * 4)
    clean, _ = attend(q, kv, PAGE * 4, 2)
    pages = kv.table_BM[0].long()
    for x in (kv.k_PKSD, kv.v_PKSD):
        x[pages[1], :, 5:] = math.nan
        x[pages[2:]] = math.nan
    again, _ = attend(q, kv, PAGE * 4, 2)
    assert torch.equal(clean, again)


def test_a_piece_that_is_masked_throughout_weighs_nothing() -> None:
    q, kv = cache([PAGE * 4], PAGE * 4)
    q = q.abs() + 0.1
    kv.k_PKSD[kv.table_BM[0, :2].long(), :, :, 0] = -math.inf
    out, _ = attend(q, kv, PAGE * 4, 4)
    torch.testing.assert_close(out.double(), truth(q, kv), rtol=1e-5, atol=1e-6)


def test_merging_partials_is_invariant_under_a_common_shift_of_the_log_sum_exp() -> None:
    draw = torch.Generator().manual_seed(1)
    o, lse = torch.randn(5, 2, 4, 8, generator=draw), torch.randn(5, 2, 4, generator=draw)
    first, second = torch.empty(2, 4, 8), torch.empty(2, 4, 8)
    merge(o, lse, first)
    merge(o, lse + 3.0, second)
    torch.testing.assert_close(first, second)


def test_pieces_are_whole_kv_blocks() -> None:
    assert plan_splits(896, 128, 7).tokens_per_split == 128
    assert plan_splits(896, 128, 6).tokens_per_split == 256
    assert plan_splits(896, 128, 1).tokens_per_split == 896
    assert plan_splits(1, 128, 1).tokens_per_split == 128


def test_fewer_than_one_split_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        plan_splits(896, 128, -1)


def test_a_plan_left_to_the_backend_is_refused_by_one_without_a_rule() -> None:
    q, kv = cache([PAGE], PAGE)
    space = Workspace(1, 1, HEADS, DIM, q.device)
    plan = plan_splits(PAGE, PAGE, OWN_RULE)
    assert plan.tokens_per_split == PAGE
    with pytest.raises(ValueError, match="no split rule of its own"):
        decode_attention(q, kv, plan, torch.empty_like(q), space, "torch")


@pytest.mark.parametrize("splits", [1, 2, 3, 7])
def test_a_contiguous_cache_is_one_page_a_sequence_and_is_not_written(splits: int) -> None:
    draw = torch.Generator().manual_seed(splits)
    k, v = (torch.randn(2, KV_HEADS, 7 * PAGE, DIM, generator=draw) for _ in "kv")
    k[0, :, 70:], v[0, :, 70:] = math.nan, math.nan
    kept = k.clone(), v.clone()
    q = torch.randn(2, HEADS, DIM, generator=draw)
    table = torch.arange(2, dtype=torch.int32).view(2, 1)
    kv = PagedKV(k, v, table, torch.tensor([70, 7 * PAGE], dtype=torch.int32))
    assert kv.contiguous
    out, launched = attend(q, kv, 7 * PAGE, splits)
    assert launched == splits
    torch.testing.assert_close(out.double(), truth(q, kv), rtol=1e-5, atol=1e-6)
    for now, before in zip((k, v), kept, strict=True):
        assert torch.equal(torch.nan_to_num(now), torch.nan_to_num(before))


def test_a_launch_larger_than_the_workspace_is_refused() -> None:
    q, kv = cache([PAGE], PAGE)
    small = Workspace(1, 1, HEADS, DIM, q.device)
    with pytest.raises(ValueError, match="exceed the workspace"):
        decode_attention(q, kv, plan_splits(PAGE, PAGE, 2), torch.empty_like(q), small, "torch")


def test_heads_that_do_not_divide_are_refused() -> None:
    _, kv = cache([PAGE], PAGE)
    q = torch.zeros(1, 3, DIM)
    space = Workspace(1, 1, 3, DIM, q.device)
    with pytest.raises(ValueError, match="do not divide"):
        decode_attention(q, kv, plan_splits(PAGE, PAGE, 1), torch.empty_like(q), space, "torch")


def test_a_piece_that_would_cut_a_page_is_refused() -> None:
    q, kv = cache([PAGE], 2 * PAGE)
    space = Workspace(1, 1, HEADS, DIM, q.device)
    with pytest.raises(ValueError, match="cut pages"):
        decode_attention(q, kv, plan_splits(8, 8, 1), torch.empty_like(q), space, "torch")
