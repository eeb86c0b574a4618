"""The Triton kernels under Triton's interpreter, on the CPU."""

from __future__ import annotations

import math

import pytest
import torch

from levers.kernels.split_kv import PagedKV, Workspace, decode_attention, plan_splits, truth
from levers.kernels.split_kv_config import CANDIDATES, DEFAULT, SplitConfig, config_named

PAGE, KV_HEADS = 32, 2

pytest.importorskip("triton", reason="triton is not installed")
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the kernels run on the device here (tests/gpu)"
)


def launch(
    lengths: list[int],
    group: int,
    splits: int,
    *,
    dim: int = 16,
    capacity: int = 96,
    dtype: torch.dtype = torch.float32,
    config: SplitConfig | None = None,
    page: int = PAGE,
    repeats: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel's output beside fp64 truth; slots that are not used hold NaN."""
    draw = torch.Generator().manual_seed(len(lengths) + group)
    per_slot = capacity // page
    pages = len(lengths) * per_slot
    table = torch.randperm(pages, generator=draw).view(len(lengths), per_slot).to(torch.int32)
    k, v = (torch.randn(pages, KV_HEADS, page, dim, generator=draw).to(dtype) for _ in "kv")
    for row, length in enumerate(lengths):
        for x in (k, v):
            x[table[row, length // page :][1:].long()] = math.nan
            if length < capacity:
                x[table[row, length // page].long(), :, length % page :] = math.nan
    q = torch.randn(len(lengths), KV_HEADS * group, dim, generator=draw).to(dtype)
    kv = PagedKV(k, v, table, torch.tensor(lengths, dtype=torch.int32))
    out = torch.full_like(q, math.nan)
    workspace = Workspace(splits, len(lengths), KV_HEADS * group, dim, q.device)
    plan = plan_splits(capacity, PAGE, splits)
    for _ in range(repeats):
        out.fill_(math.nan)
        assert decode_attention(q, kv, plan, out, workspace, "triton", config) == splits
    assert not workspace.arrived_BH.any()
    return out, truth(q, kv)


@pytest.mark.parametrize("splits", [1, 2, 3])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_the_kernel_gives_the_attention_for_every_group_and_split(group: int, splits: int) -> None:
    out, true = launch([96, 33, 1], group, splits)
    torch.testing.assert_close(out.double(), true, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lengths", [[31], [32], [33], [64], [95]])
def test_the_kernel_is_right_at_the_edges_of_a_page(lengths: list[int]) -> None:
    out, true = launch(lengths, 2, 3)
    torch.testing.assert_close(out.double(), true, rtol=1e-5, atol=1e-5)


def test_empty_splits_weigh_nothing() -> None:
    out, true = launch([20, 5], 2, 7, capacity=224)
    torch.testing.assert_close(out.double(), true, rtol=1e-5, atol=1e-5)


def test_the_kernel_takes_a_16_bit_type() -> None:
    # fp16: Triton 3.9's interpreter multiplies the raw bits of bf16 (tests/gpu has bf16)
    out, true = launch([96, 50], 2, 2, dtype=torch.float16, dim=32)
    torch.testing.assert_close(out.double(), true, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("config", CANDIDATES, ids=lambda config: config.name)
def test_every_layout_gives_the_attention_launch_after_launch(config: SplitConfig) -> None:
    shape = {"capacity": 256, "page": 128, "dtype": torch.float16, "dim": 16}
    out, true = launch([250, 1], 4, 2, config=config, repeats=2, **shape)  # type: ignore[arg-type]
    torch.testing.assert_close(out.double(), true, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("splits", [2, 18])
def test_the_last_program_merges_any_number_of_splits(splits: int) -> None:
    for lengths in ([576], [20]):
        out, true = launch(
            lengths, 3, splits, capacity=576, config=SplitConfig(merge="last"), repeats=2
        )
        torch.testing.assert_close(out.double(), true, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("splits", [1, 3])
def test_a_contiguous_cache_is_read_as_one_page_a_sequence(splits: int) -> None:
    out, true = launch([96, 40], 2, splits, page=96)
    torch.testing.assert_close(out.double(), true, rtol=1e-5, atol=1e-5)


def test_a_layout_is_found_by_its_name() -> None:
    assert config_named(DEFAULT.name) is DEFAULT
    assert len({config.name for config in CANDIDATES}) == len(CANDIDATES)
    with pytest.raises(ValueError, match="no layout"):
        config_named("fast")


def test_a_head_dimension_that_is_no_power_of_two_is_refused() -> None:
    with pytest.raises(ValueError, match="power of two"):
        launch([20], 2, 1, dim=24)
