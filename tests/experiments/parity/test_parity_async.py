from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from experiments.parity import async_
from experiments.parity.async_ import in_flight
from levers.base import OpCase
from tests.support import runs

Tensors = tuple[Tensor, ...]


def double(inputs: Tensors, outputs: Tensors) -> None:
    torch.mul(inputs[0], 2, out=outputs[0])


def case(name: str, candidate: object = double) -> OpCase:
    def draw(seed: int) -> Tensors:
        generator = torch.Generator().manual_seed(seed + len(name))
        return (torch.randn(32, generator=generator),)

    return OpCase(
        name=name,
        inputs=draw,
        outputs=lambda given: (torch.empty(32),),
        reference=double,
        candidate=candidate,  # type: ignore[arg-type]
        truth=lambda given: (given[0].double() * 2,),
    )


class SharedScratch:
    """A kernel that keeps its partial results in one buffer for all calls."""

    def __init__(self) -> None:
        self.scratch = torch.empty(32)

    def __call__(self, inputs: Tensors, outputs: Tensors) -> None:
        self.scratch.copy_(inputs[0])
        time.sleep(0.002)
        torch.mul(self.scratch, 2, out=outputs[0])


NAMES = ("a", "bb", "ccc", "dddd")


def test_calls_that_share_nothing_give_the_same_bits_together() -> None:
    found = in_flight([case(name) for name in NAMES], 1, cuda=False)
    assert (found.status, found.passed, found.total) == ("passed", 12, 12)


def test_few_cases_are_asked_for_in_as_many_rounds_as_the_real_size_takes() -> None:
    found = in_flight([case(name) for name in NAMES], 1, cuda=False, least=325)
    assert (found.status, found.passed, found.total) == ("passed", 328, 328)
    assert found.detail == "4 cases, 82 rounds, 4 in flight"


@pytest.mark.parametrize(("device", "calls"), [("cpu", 0), ("cuda:0", 325)])
def test_the_real_size_of_the_check_is_a_gpus(
    device: str, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(async_.op, "cases_of", lambda _: (case("a"),))
    monkeypatch.setattr(async_, "in_flight", lambda *_, **more: asked.append(more["least"]))
    spec = runs.spec(device=device)
    async_.probe(runs.task(spec, "async"), None)
    assert asked == [calls]


def test_scratch_memory_that_calls_share_is_found() -> None:
    kernel = SharedScratch()
    found = in_flight([case(name, kernel) for name in NAMES], 1, cuda=False)
    assert found.status == "failed"
    assert found.where in NAMES


def test_a_reference_with_shared_scratch_is_itself_at_fault() -> None:
    kernel = SharedScratch()
    cases = [replace(case(name, kernel), reference=kernel) for name in NAMES]
    found = in_flight(cases, 1, cuda=False)
    assert (found.status, found.fault) == ("reference-fault", "failed")


def test_a_case_that_differs_from_itself_alone_proves_nothing() -> None:
    count = iter(range(10_000))
    lock = threading.Lock()

    def unsteady(inputs: Tensors, outputs: Tensors) -> None:
        with lock:
            outputs[0].fill_(next(count))

    assert in_flight([case("a", unsteady)], 1, cuda=False).status == "not-run"
    mixed = in_flight([case("a", unsteady), case("bb")], 1, cuda=False)
    assert (mixed.status, mixed.total) == ("passed", 3)
    assert "1 that differ from themselves alone left out" in mixed.detail
