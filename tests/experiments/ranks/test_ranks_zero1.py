from __future__ import annotations

import importlib.util
import json
import os
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


WAYS = ("torch", "deepspeed")
INSTALLED = [way for way in WAYS if importlib.util.find_spec(way) is not None]

Ranks = list[dict[str, Any]]


@pytest.fixture(scope="module")
def by_way(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ranks]:
    """What the ranks of each way that is installed say; all train at once."""
    folder = tmp_path_factory.mktemp("meeting")
    processes = {
        (way, rank): subprocess.Popen(
            [sys.executable, str(SCRIPT), way, str(rank), str(SIZE), str(folder / way)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "PATH": ""},
        )
        for way in INSTALLED
        for rank in range(SIZE)
    }
    said: dict[str, Ranks] = {way: [] for way in INSTALLED}
    for (way, _), process in processes.items():
        out, err = process.communicate(timeout=100)
        assert process.returncode == 0, err
        said[way].append({**json.loads(out), "noise": err})
    return said


@pytest.fixture(params=WAYS)
def found(request: pytest.FixtureRequest, by_way: dict[str, Ranks]) -> Ranks:
    if request.param not in by_way:
        pytest.skip(f"{request.param} is not installed")
    return by_way[request.param]


@pytest.fixture
def under_deepspeed(by_way: dict[str, Ranks]) -> Ranks:
    if "deepspeed" not in by_way:
        pytest.skip("deepspeed is not installed")
    return by_way["deepspeed"]


def test_gradients_are_the_mean_over_the_ranks_also_over_micro_batches(
    found: Ranks,
) -> None:
    """Their norm is above one: an engine that clips by its own default would be seen."""
    assert all(one["norm"] > 1.0 for one in found)
    assert all(one["gradients"] < 1e-6 * one["norm"] for one in found)


def test_the_divided_update_is_the_whole_one(found: Ranks) -> None:
    """Adam divides by the root of a square: a rounding of the mean moves a weight by far less."""
    assert all(one["weights"] < 1e-4 for one in found)


def test_all_ranks_hold_the_same_weights_to_the_bit(found: Ranks) -> None:
    assert found[0]["checksums"] == found[1]["checksums"]
    assert len(found[0]["checksums"]) == 6


def test_each_rank_holds_a_part_of_the_moments(found: Ranks) -> None:
    """DeepSpeed fills its parts up to the same size."""
    shares = [one["state_share"] for one in found]
    assert sum(shares) == pytest.approx(1.0, rel=1e-3)
    assert all(0 < share < 1 for share in shares)


def test_the_callers_autocast_holds_inside_the_model(found: Ranks) -> None:
    assert {one["autocast"] for one in found} == {"torch.bfloat16"}


def test_nothing_is_left_changed_running_or_said(found: Ranks) -> None:
    assert [one["changed"] for one in found] == [[]] * SIZE
    assert [one["children"] for one in found] == [[]] * SIZE
    assert [one["unwanted"] for one in found] == [[]] * SIZE
    assert [one["noise"] for one in found] == [""] * SIZE


def test_both_ways_train_alike(by_way: dict[str, Ranks], under_deepspeed: Ranks) -> None:
    for mine, torchs in zip(under_deepspeed, by_way["torch"], strict=True):
        assert mine["losses"] == pytest.approx(torchs["losses"], rel=1e-5)


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
