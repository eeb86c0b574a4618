"""The fused norm and RoPE: plain PyTorch against the original, the autograd node, refusals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from experiments.workloads.flow.rope import phases
from levers.kernels.qk_norm_rope import SMALLEST_NORM, qk_norm_rope
from levers.kernels.qk_norm_rope_cases import published


def packed(
    rows: int, heads: int, dim: int, dtype: torch.dtype, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as views of one projection."""
    generator = torch.Generator().manual_seed(seed)
    qkv = torch.randn(rows, 3 * heads * dim, generator=generator).to(dtype).requires_grad_()
    q, k, v = qkv.unflatten(-1, (3, heads, dim)).unbind(1)
    return q, k, v


def gammas(heads: int, dim: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(9)
    draw = [1 + 0.3 * torch.randn(heads, dim, generator=generator).to(dtype) for _ in "qk"]
    return [one.requires_grad_() for one in draw]


def voxels(rows: int, dim: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return phases(torch.randint(0, 32, (rows, 3), generator=generator), dim, dtype)


def test_the_forward_is_the_original_up_to_one_fp32_rounding_before_it_rounds() -> None:
    q, k, _ = packed(50, 3, 24, torch.bfloat16)
    weights = gammas(3, 24, torch.float32)
    turns = voxels(50, 24, torch.float32)
    for ours, theirs in zip(
        qk_norm_rope(q, k, *weights, turns), published(q, k, *weights, turns), strict=True
    ):
        assert ours.dtype == torch.bfloat16
        assert ours.is_contiguous()
        assert ((ours != theirs).float().mean()) < 0.01
        torch.testing.assert_close(ours, theirs, rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize("turn", [True, False])
def test_the_forward_equals_the_original_in_fp64(turn: bool) -> None:
    q, k, _ = packed(20, 2, 12, torch.float64)
    weights = gammas(2, 12, torch.float64)
    turns = voxels(20, 12, torch.float64) if turn else None
    ours, theirs = qk_norm_rope(q, k, *weights, turns), published(q, k, *weights, turns)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("turn", [True, False])
def test_gradcheck_holds_in_fp64(turn: bool) -> None:
    q, k = (x.detach().requires_grad_() for x in packed(3, 2, 6, torch.float64)[:2])
    turns = voxels(3, 6, torch.float64) if turn else None
    assert torch.autograd.gradcheck(
        lambda *four: qk_norm_rope(*four, turns), (q, k, *gammas(2, 6, torch.float64))
    )


def test_phases_may_be_complex_or_their_cosines_and_sines() -> None:
    q, k, _ = packed(20, 2, 12, torch.float32)
    weights, turns = gammas(2, 12, torch.float32), voxels(20, 12, torch.float32)
    as_complex = qk_norm_rope(q, k, *weights, turns)
    as_pairs = qk_norm_rope(q, k, *weights, torch.view_as_real(turns))
    assert all(map(torch.equal, as_complex, as_pairs))


def test_cross_attention_has_as_many_keys_as_it_likes() -> None:
    q, k = packed(5, 2, 8, torch.float64)[0], packed(17, 2, 8, torch.float64, seed=1)[1]
    weights = gammas(2, 8, torch.float64)
    ours, theirs = qk_norm_rope(q, k, *weights, None), published(q, k, *weights, None)
    assert [len(one) for one in ours] == [5, 17]
    torch.testing.assert_close(ours[1], theirs[1])


def test_a_zero_row_is_zero_and_its_gradient_follows_the_clamp() -> None:
    q = torch.zeros(2, 1, 4, dtype=torch.float64, requires_grad=True)
    k = torch.ones(2, 1, 4, dtype=torch.float64)
    ones = torch.ones(1, 4, dtype=torch.float64)
    found, _ = qk_norm_rope(q, k, ones, ones, None)
    assert found.abs().max() == 0
    (gradient,) = torch.autograd.grad(found.sum(), q)
    torch.testing.assert_close(gradient, torch.full_like(q, 2.0 / SMALLEST_NORM))


def test_the_gradient_reaches_the_packed_projection_and_keeps_its_dtype() -> None:
    found = {}
    for call in (qk_norm_rope, published):
        generator = torch.Generator().manual_seed(1)
        qkv = torch.randn(6, 48, generator=generator).bfloat16().requires_grad_()
        q, k, v = qkv.unflatten(-1, (3, 2, 8)).unbind(1)
        weights = gammas(2, 8, torch.float32)
        q, k = call(q, k, *weights, voxels(6, 8, torch.float32))
        torch.autograd.backward((q * k * v).float().sum())
        found[call] = [x.grad for x in (qkv, *weights)]
    for ours, theirs in zip(*found.values(), strict=True):
        assert ours is not None
        assert theirs is not None
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=2**-5, atol=2**-5)


def test_nothing_but_what_came_in_is_kept_for_the_backward() -> None:
    q, k, _ = packed(6, 2, 8, torch.bfloat16)
    weights = gammas(2, 8, torch.float32)
    turns = voxels(6, 8, torch.float32)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        qk_norm_rope(q, k, *weights, turns)
    given = {x.data_ptr() for x in (q, k, *weights, turns)}
    assert {one.data_ptr() for one in kept} == given


@pytest.mark.parametrize(
    ("q", "k", "gamma", "rows", "complaint"),
    [
        ((4, 2, 8), (4, 2, 6), (2, 8), None, "equal heads"),
        ((4, 2, 7), (4, 2, 7), (2, 7), None, "even head dim"),
        ((4, 2, 8), (4, 2, 8), (1, 8), None, "gammas"),
        ((4, 2, 8), (4, 2, 8), (2, 8), 3, "phases"),
        ((4, 2, 8), (5, 2, 8), (2, 8), 4, "phases"),
    ],
)
def test_shapes_that_do_not_belong_together_are_refused(
    q: tuple[int, ...],
    k: tuple[int, ...],
    gamma: tuple[int, ...],
    rows: int | None,
    complaint: str,
) -> None:
    turns = None if rows is None else voxels(rows, 8, torch.float32)
    with pytest.raises(ValueError, match=complaint):
        qk_norm_rope(torch.ones(q), torch.ones(k), torch.ones(gamma), torch.ones(gamma), turns)


# what PyTorch 2.13 warns of is its own tracing of a Function
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_compiler_traces_it_into_one_graph_without_complex_numbers() -> None:
    q, k = (x.detach().requires_grad_() for x in packed(6, 2, 8, torch.float32)[:2])
    leaves = (q, k, *gammas(2, 8, torch.float32))
    turns = torch.view_as_real(voxels(6, 8, torch.float32))
    found = []
    for call in (qk_norm_rope, torch.compile(qk_norm_rope, backend="aot_eager", fullgraph=True)):
        out = call(*leaves, turns)
        found.append((*out, *torch.autograd.grad(out, leaves, [torch.ones_like(x) for x in out])))
    for eager, compiled in zip(*found, strict=True):
        torch.testing.assert_close(eager, compiled)
