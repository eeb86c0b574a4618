"""The sum of partials that the row kernels share, interpreted."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch

ROWS = 4


@pytest.fixture
def interpreted() -> ModuleType:
    """The kernel's module under Triton's interpreter (see conftest.py)."""
    pytest.importorskip("triton", reason="triton is not installed")
    if torch.cuda.is_available():
        pytest.skip("the kernel runs on the device here (tests/gpu)")
    return importlib.import_module("levers.kernels.row_blocks_triton")


def cancelling(slots: int, channels: int) -> torch.Tensor:
    """Two kinds of partials whose second half cancels the first but for a thousandth."""
    draw = torch.Generator().manual_seed(8)
    half, signal = torch.randn(2, 2, slots // 2, channels, generator=draw)
    return torch.cat([1e4 * half, 10 * signal - 1e4 * half], dim=1)


def test_partials_that_cancel_lose_nothing_but_the_last_rounding(interpreted: ModuleType) -> None:
    partials = cancelling(300, 5)
    rows = 300 * ROWS
    found = interpreted.sum_partials(partials, None, rows, 1, ROWS, torch.float32)
    true = partials.double().sum(1, keepdim=True)
    assert torch.equal(found, true.float())
    assert not torch.equal(partials.sum(1, keepdim=True), found)


def test_each_samples_partials_are_summed_apart(interpreted: ModuleType) -> None:
    rows = (400, 0, 801)
    offsets = torch.tensor([0, 400, 400, 1201], dtype=torch.int32)
    slots = interpreted.slot_count(sum(rows), len(rows), ROWS)
    partials = cancelling(slots + slots % 2, 3)[:, :slots].contiguous()
    found = interpreted.sum_partials(partials, offsets, sum(rows), len(rows), ROWS, torch.float32)
    first = partials[:, :100].double().sum(1)
    last = partials[:, 102 : 102 + 201].double().sum(1)
    true = torch.stack([first, torch.zeros_like(first), last], dim=1)
    assert torch.equal(found, true.float())
