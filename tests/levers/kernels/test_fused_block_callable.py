"""The fused block as a callable: what it hands on, which matrices it takes, how it stores keys."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from levers.kernels.fused_block import FusedBlock, StoringAttention
from levers.kernels.fused_block_cases import SIZES, WholeBlock, attend, separate
from levers.kernels.gemv import Norm, fused_linear
from levers.kernels.gemv_tilings import LARGEST_NORMED_ROWS, LARGEST_ROWS

WHOLE = WholeBlock(SIZES["Llama, small"])


def drawn(count: int) -> tuple[Any, tuple[Tensor, ...]]:
    case = WHOLE.case(count, torch.float32, "cpu")
    inputs = case.inputs(2)
    return WHOLE._parts(inputs), inputs


def call(run: Any, parts: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = run(parts, inputs[0], inputs[1], (inputs[2], inputs[3]), attend)
    return found


def close(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [1, LARGEST_NORMED_ROWS, LARGEST_NORMED_ROWS + 1, LARGEST_ROWS])
def test_a_step_is_the_separate_operations(count: int) -> None:
    parts, inputs = drawn(count)
    run = FusedBlock(separate)
    close(call(run, parts, inputs), WHOLE.original(inputs))
    where = "in products" if count <= LARGEST_NORMED_ROWS else "apart"
    assert run.ran == f"fused_block, norms {where}"
    early = FusedBlock(separate, early=True)
    assert all(map(torch.equal, call(early, parts, inputs), call(run, parts, inputs)))
    assert early.ran == f"{run.ran}, early launches"


def test_before_the_first_block_there_is_nothing_to_add() -> None:
    for count in (1, 8):
        parts, inputs = drawn(count)
        run = FusedBlock(separate)
        x, _ = run(parts, inputs[0], None, (inputs[2], inputs[3]), attend)
        nothing = (inputs[0], torch.zeros_like(inputs[1]), *inputs[2:])
        close(call(run, parts, inputs=nothing), WHOLE.original(nothing))
        close((x,), WHOLE.original(nothing)[:1])


def test_a_prompt_goes_to_the_callable_that_was_found() -> None:
    parts, inputs = drawn(LARGEST_ROWS + 1)
    seen: list[object] = []

    def found(*arguments: object) -> tuple[Tensor, Tensor]:
        seen.extend(arguments)
        return inputs[0], inputs[1]

    run = FusedBlock(found)
    assert call(run, parts, inputs) == (inputs[0], inputs[1])
    assert seen[0] is parts
    assert seen[-1] is attend
    assert "handed on" in run.ran


@dataclass
class Stored:
    """A matrix in a form of its own that knows nothing of norms."""

    matrix: Tensor

    def linear(self, x_NC: Tensor) -> Tensor:
        return x_NC @ self.matrix.T


class Fusing(Stored):
    """One with a fused product of its own."""

    calls = 0

    def fused_linear(self, x_NC: Tensor, norm: Norm | None, swiglu: bool) -> Tensor:
        Fusing.calls += 1
        return fused_linear(x_NC, self.matrix, norm, swiglu=swiglu)


@pytest.mark.parametrize("kind", [Stored, Fusing])
@pytest.mark.parametrize("count", [1, 6])
def test_matrices_that_are_no_tensors_take_part(kind: type[Stored], count: int) -> None:
    parts, inputs = drawn(count)
    names = ("qkv_EC", "o_CE", "gate_up_JC", "down_CI")
    stored = {name: kind(getattr(parts.weights, name)) for name in names}
    other = replace(parts, weights=replace(parts.weights, **stored))
    Fusing.calls = 0
    close(call(FusedBlock(separate), other, inputs), WHOLE.original(inputs))
    assert Fusing.calls == (4 if kind is Fusing else 0)


def test_an_attention_that_can_be_stored_to_is_told_from_a_function() -> None:
    class Storing:
        def places(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
            raise AssertionError(layer)

        def attend_stored(self, layer: int, q_NHD: Tensor) -> Tensor:
            raise AssertionError((layer, q_NHD))

    assert isinstance(Storing(), StoringAttention)
    assert not isinstance(attend, StoringAttention)
