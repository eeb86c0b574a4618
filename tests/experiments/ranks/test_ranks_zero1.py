from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from experiments.ranks.checksums import checksum, checksums

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "tests" / "support" / "zero1_check.py"
SIZE = 2


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    meeting = tmp_path_factory.mktemp("meeting") / "file"
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(SIZE), str(meeting)],
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": ""},
        )
        for rank in range(SIZE)
    ]
    return [json.loads(process.communicate(timeout=100)[0]) for process in processes]


def test_gradients_are_the_mean_over_the_ranks_also_over_micro_batches(
    found: list[dict[str, Any]],
) -> None:
    assert all(one["gradients"] < 1e-6 for one in found)


def test_the_divided_update_is_the_whole_one(found: list[dict[str, Any]]) -> None:
    """Adam divides by the root of a square: a rounding of the mean moves a weight by far less."""
    assert all(one["weights"] < 1e-4 for one in found)


def test_all_ranks_hold_the_same_weights_to_the_bit(found: list[dict[str, Any]]) -> None:
    assert found[0]["checksums"] == found[1]["checksums"]
    assert len(found[0]["checksums"]) == 6


def test_each_rank_holds_a_part_of_the_moments(found: list[dict[str, Any]]) -> None:
    shares = [one["state_share"] for one in found]
    assert sum(shares) == pytest.approx(1.0)
    assert all(0 < share < 1 for share in shares)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_checksum_sees_one_bit_and_a_swap_of_two_values(dtype: torch.dtype) -> None:
    one = torch.randn(1000, generator=torch.Generator().manual_seed(0)).to(dtype)
    flipped, swapped = one.clone(), one.clone()
    flipped[7] = torch.nextafter(one[7], torch.tensor(9.0, dtype=dtype))
    swapped[3], swapped[4] = one[4], one[3]
    assert checksum(one.clone()).tolist() == checksum(one).tolist()
    assert checksum(flipped).tolist() != checksum(one).tolist()
    assert checksum(swapped)[0] == checksum(one)[0]
    assert checksum(swapped)[1] != checksum(one)[1]


def test_checksums_in_pieces_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    whole = checksum(tensor).tolist()
    monkeypatch.setattr("experiments.ranks.checksums.CHUNK", 64)
    assert checksum(tensor).tolist() == whole


def test_a_parameter_without_a_gradient_has_no_checksum_of_one() -> None:
    model = nn.Linear(3, 2)
    assert checksums(model, gradients=True) == {}
    model(torch.ones(1, 3)).sum().backward()
    assert set(checksums(model, gradients=True)) == {"weight", "bias"}
    assert set(checksums(model)) == {"weight", "bias"}
