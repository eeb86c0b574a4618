"""The fused norm and RoPE: plain PyTorch against the original, the autograd node, refusals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from experiments.workloads.flow.rope import phases
from levers.kernels.qk_norm_rope import SMALLEST_NORM, qk_norm_rope
from levers.kernels.qk_norm_rope_cases import published


def packed(rows: int, heads: int, dim: int, dtype: torch.dtype, parts: int = 3) -> Tensor:
    """One projection: queries, keys and values, or the last two."""
    generator = torch.Generator().manual_seed(parts)
    return torch.randn(rows, parts, heads, dim, generator=generator).to(dtype).requires_grad_()


def apart(rows: int, heads: int, dim: int, dtype: torch.dtype) -> Tensor:
    """Queries of their own."""
    return packed(rows, heads, dim, dtype, parts=1).detach()[:, 0].requires_grad_()


def gammas(heads: int, dim: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(9)
    draw = [1 + 0.3 * torch.randn(heads, dim, generator=generator).to(dtype) for _ in "qk"]
    return [one.requires_grad_() for one in draw]


def voxels(rows: int, dim: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return phases(torch.randint(0, 32, (rows, 3), generator=generator), dim, dtype)


def test_the_forward_is_the_original_up_to_one_fp32_rounding_before_it_rounds() -> None:
    qkv = packed(50, 3, 24, torch.bfloat16)
    weights = gammas(3, 24, torch.float32)
    turns = voxels(50, 24, torch.float32)
    *found, v = qk_norm_rope(None, qkv, *weights, turns)
    *expected, _ = published(None, qkv, *weights, turns)
    assert v.data_ptr() == qkv[:, 2].data_ptr()
    assert torch.equal(v, qkv[:, 2])
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == torch.bfloat16
        assert ours.is_contiguous()
        assert ((ours != theirs).float().mean()) < 0.01
        torch.testing.assert_close(ours, theirs, rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize("turn", [True, False])
def test_the_forward_equals_the_original_in_fp64(turn: bool) -> None:
    qkv = packed(20, 2, 12, torch.float64)
    weights = gammas(2, 12, torch.float64)
    turns = voxels(20, 12, torch.float64) if turn else None
    ours, theirs = qk_norm_rope(None, qkv, *weights, turns), published(None, qkv, *weights, turns)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("turn", [True, False])
def test_gradcheck_holds_in_fp64(turn: bool) -> None:
    qkv, turns = packed(3, 2, 6, torch.float64), voxels(3, 6, torch.float64) if turn else None
    assert torch.autograd.gradcheck(
        lambda *three: qk_norm_rope(None, *three, turns), (qkv, *gammas(2, 6, torch.float64))
    )


def test_gradcheck_holds_where_queries_come_apart() -> None:
    leaves = (apart(2, 2, 6, torch.float64), packed(4, 2, 6, torch.float64, parts=2))
    assert torch.autograd.gradcheck(
        lambda *four: qk_norm_rope(*four, None), (*leaves, *gammas(2, 6, torch.float64))
    )


def test_phases_may_be_complex_or_their_cosines_and_sines() -> None:
    qkv = packed(20, 2, 12, torch.float32)
    weights, turns = gammas(2, 12, torch.float32), voxels(20, 12, torch.float32)
    as_complex = qk_norm_rope(None, qkv, *weights, turns)
    as_pairs = qk_norm_rope(None, qkv, *weights, torch.view_as_real(turns))
    assert all(map(torch.equal, as_complex, as_pairs))


def test_cross_attention_has_as_many_keys_as_it_likes() -> None:
    q, kv = apart(5, 2, 8, torch.float64), packed(17, 2, 8, torch.float64, parts=2)
    weights = gammas(2, 8, torch.float64)
    ours, theirs = qk_norm_rope(q, kv, *weights, None), published(q, kv, *weights, None)
    assert [len(one) for one in ours] == [5, 17, 17]
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_a_zero_row_is_zero_and_its_gradient_follows_the_clamp() -> None:
    q = torch.zeros(2, 1, 4, dtype=torch.float64, requires_grad=True)
    kv = torch.ones(2, 2, 1, 4, dtype=torch.float64)
    ones = torch.ones(1, 4, dtype=torch.float64)
    found, *_ = qk_norm_rope(q, kv, ones, ones, None)
    assert found.abs().max() == 0
    (gradient,) = torch.autograd.grad(found.sum(), q)
    torch.testing.assert_close(gradient, torch.full_like(q, 2.0 / SMALLEST_NORM))


def test_the_gradient_reaches_the_packed_projection_and_keeps_its_dtype() -> None:
    found = {}
    for call in (qk_norm_rope, published):
        generator = torch.Generator().manual_seed(1)
        qkv = torch.randn(6, 48, generator=generator).bfloat16().requires_grad_()
        weights = gammas(2, 8, torch.float32)
        rows = qkv.unflatten(-1, (3, 2, 8))
        q, k, v = call(None, rows, *weights, voxels(6, 8, torch.float32))
        torch.autograd.backward((q * k * v).float().sum())
        found[call] = [x.grad for x in (qkv, *weights)]
    for ours, theirs in zip(*found.values(), strict=True):
        assert ours is not None
        assert theirs is not None
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=2**-5, atol=2**-5)


def test_values_that_nothing_used_leave_a_gradient_of_zero() -> None:
    qkv = packed(6, 2, 8, torch.float64)
    q, k, _ = qk_norm_rope(None, qkv, *gammas(2, 8, torch.float64), None)
    (gradient,) = torch.autograd.grad((q * k).sum(), qkv)
    assert gradient[:, 2].abs().max() == 0
    assert gradient[:, :2].abs().min() > 0


def test_nothing_but_what_came_in_is_kept_for_the_backward() -> None:
    qkv = packed(6, 2, 8, torch.bfloat16)
    weights = gammas(2, 8, torch.float32)
    turns = voxels(6, 8, torch.float32)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        qk_norm_rope(None, qkv, *weights, turns)
    given = {x.data_ptr() for x in (qkv, *weights, turns)}
    assert {one.data_ptr() for one in kept} == given


@pytest.mark.parametrize(
    ("q", "rest", "gamma", "rows", "complaint"),
    [
        ((4, 2, 8), (4, 2, 2, 6), (2, 8), None, "equal heads"),
        ((4, 2, 7), (4, 2, 2, 7), (2, 7), None, "even head dim"),
        (None, (4, 2, 2, 8), (2, 8), None, "3, heads, head dim"),
        ((4, 2, 8), (4, 3, 2, 8), (2, 8), None, "2, heads, head dim"),
        (None, (4, 3, 16), (2, 8), None, "3, heads, head dim"),
        (None, (4, 3, 2, 8), (1, 8), None, "gammas"),
        (None, (4, 3, 2, 8), (2, 8), 3, "phases"),
        ((4, 2, 8), (5, 2, 2, 8), (2, 8), 4, "phases"),
    ],
)
def test_shapes_that_do_not_belong_together_are_refused(
    q: tuple[int, ...] | None,
    rest: tuple[int, ...],
    gamma: tuple[int, ...],
    rows: int | None,
    complaint: str,
) -> None:
    turns = None if rows is None else voxels(rows, 8, torch.float32)
    with pytest.raises(ValueError, match=complaint):
        qk_norm_rope(
            None if q is None else torch.ones(q),
            torch.ones(rest),
            torch.ones(gamma),
            torch.ones(gamma),
            turns,
        )


# what PyTorch 2.13 warns of is its own tracing of a Function
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_compiler_traces_it_into_one_graph_without_complex_numbers() -> None:
    leaves = (packed(6, 2, 8, torch.float32), *gammas(2, 8, torch.float32))
    turns = torch.view_as_real(voxels(6, 8, torch.float32))
    found = []
    for call in (qk_norm_rope, torch.compile(qk_norm_rope, backend="aot_eager", fullgraph=True)):
        out = call(None, *leaves, turns)
        found.append((*out, *torch.autograd.grad(out, leaves, [torch.ones_like(x) for x in out])))
    for eager, compiled in zip(*found, strict=True):
        torch.testing.assert_close(eager, compiled)
