"""The fused norm and RoPE's kernels under Triton's interpreter, on the CPU, against fp64."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch
from torch import Tensor

from experiments.parity.compare import Errors
from levers.kernels.qk_norm_rope import unpacked
from levers.kernels.qk_norm_rope_cases import QkCase, published

pytest.importorskip("triton", reason="triton is not installed")
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the kernels run on the device here (tests/gpu)"
)

FORWARD = "levers.kernels.qk_norm_rope_triton"
BACKWARD = "levers.kernels.qk_norm_rope_grad_triton"

SHAPES = [
    pytest.param((1, 1), True, 2, 32, id="one row"),
    pytest.param((33, 33), True, 5, 16, id="a row more than a tile, a head more than a group"),
    pytest.param((40, 40), True, 3, 24, id="a head dim that is no power of two"),
    pytest.param((7, 70), False, 2, 32, id="more keys than queries"),
    pytest.param((70, 7), False, 2, 32, id="more queries than keys"),
    pytest.param((3, 145), False, 1, 16, id="keys beyond one program's rows"),
    pytest.param((16, 16), True, 1, 128, id="the model's head dim"),
]
# the interpreter rounds fp32 to bf16 towards zero: one unit instead of half a unit, twice
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.fixture
def forward() -> ModuleType:
    return importlib.import_module(FORWARD)


@pytest.fixture
def backward() -> ModuleType:
    return importlib.import_module(BACKWARD)


def inputs_of(
    rows: tuple[int, int], turned: bool, heads: int, dim: int, dtype: torch.dtype
) -> tuple[QkCase, tuple[Tensor, ...]]:
    case = QkCase(rows, turned, lambda x: x, dtype, "cpu", heads, dim)
    return case, case.inputs(3)


def operands(inputs: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    """Queries or None, packed rows, both gammas, the turns or None."""
    *apart, packed, gamma_q, gamma_k, turn = inputs[:-3]
    q = apart[0] if apart else None
    return q, packed, gamma_q, gamma_k, turn if turn.numel() else None


def turned_forward(forward: ModuleType, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    q, packed, *others = operands(inputs)
    assert packed is not None
    found: tuple[Tensor, ...] = forward.forward_triton(*unpacked(q, packed)[:2], *others)
    return found


def launched(
    backward: ModuleType, inputs: tuple[Tensor, ...], grads: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Gradients of queries, keys, values and gammas."""
    dq, dpacked, *dgammas = backward.backward_triton(*operands(inputs), grads)
    assert dpacked.is_contiguous()
    return (*(() if dq is None else (dq,)), *dpacked.unbind(1), *dgammas)


def assert_near(found: Tensor, truth: Tensor, dtype: torch.dtype) -> None:
    assert found.shape == truth.shape
    error = (found.double() - truth).norm() / truth.norm()
    assert error <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("rows", "turned", "heads", "dim"), SHAPES)
def test_both_kernels_equal_fp64_up_to_rounding(
    forward: ModuleType,
    backward: ModuleType,
    rows: tuple[int, int],
    turned: bool,
    heads: int,
    dim: int,
    dtype: torch.dtype,
) -> None:
    case, inputs = inputs_of(rows, turned, heads, dim, dtype)
    for found, truth in zip(
        turned_forward(forward, inputs), case.forward_truth(inputs), strict=True
    ):
        assert found.dtype == dtype
        assert_near(found, truth, dtype)
    gradients = launched(backward, inputs, inputs[-3:])
    assert [g.dtype for g in gradients] == [dtype] * 3 + [torch.float32] * 2
    assert torch.equal(gradients[2], inputs[-1])
    for found, truth in zip(gradients, case.backward_truth(inputs), strict=True):
        assert_near(found, truth, dtype)


def test_rows_that_are_views_are_read_in_place(forward: ModuleType) -> None:
    case, inputs = inputs_of((20, 20), True, 2, 16, torch.float32)
    q, k, _ = unpacked(None, inputs[0])
    assert not q.is_contiguous()
    assert q.data_ptr() != k.data_ptr()
    found = turned_forward(forward, inputs)
    assert all(one.is_contiguous() for one in found)
    assert_near(found[1], case.forward_truth(inputs)[1], torch.float32)


@pytest.mark.parametrize("layout", ["transposed heads", "no unit stride"])
def test_gradients_may_come_in_any_layout(backward: ModuleType, layout: str) -> None:
    case, inputs = inputs_of((20, 20), True, 2, 16, torch.float32)
    order = (1, 0, 2) if layout == "transposed heads" else (2, 0, 1)
    grads = tuple(
        g.permute(order).contiguous().permute([order.index(i) for i in range(3)])
        for g in inputs[-3:]
    )
    for found, truth in zip(
        launched(backward, inputs, grads), case.backward_truth(inputs), strict=True
    ):
        assert_near(found, truth, torch.float32)


def test_the_gammas_sums_repeat_bit_for_bit(backward: ModuleType) -> None:
    _, inputs = inputs_of((70, 70), True, 2, 16, torch.bfloat16)
    first = launched(backward, inputs, inputs[-3:])
    again = launched(backward, inputs, inputs[-3:])
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_a_nan_stays_in_its_head_and_a_zero_row_stays_zero(forward: ModuleType) -> None:
    _, inputs = inputs_of((4, 4), True, 2, 16, torch.float32)
    q, k, _ = unpacked(None, inputs[0].clone())
    q[0, 1, 3], q[2] = float("nan"), 0.0
    found, _ = forward.forward_triton(q, k, *inputs[1:4])
    assert found[0, 1].isnan().all()
    assert torch.isfinite(found[0, 0]).all()
    assert torch.isfinite(found[1:]).all()
    assert found[2].abs().max() == 0


@pytest.mark.parametrize("turned", [True, False])
def test_in_fp32_no_row_is_further_from_fp64_than_one_division_and_two_products_allow(
    forward: ModuleType, turned: bool
) -> None:
    case = QkCase((64, 64), turned, lambda x: x, torch.float32, "cpu", 1, 128)
    error, reference = Errors(), Errors()
    for seed in range(3):
        inputs = case.inputs(seed)
        theirs = case.results_like(inputs)
        case.forward(published, inputs, theirs)
        for pool, found in ((error, turned_forward(forward, inputs)), (reference, theirs)):
            for one, truth in zip(found, case.forward_truth(inputs), strict=True):
                pool.add(one, truth, None)
    assert error.norm < reference.norm
    assert error.row_p99 < reference.row_p99
    assert error.worst_row_ulps < 2.0


# the interpreter computes the step beyond infinity that the kernel then does not take
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_a_norm_that_overflows_gives_zeros_beside_its_infinity(forward: ModuleType) -> None:
    _, inputs = inputs_of((4, 4), True, 2, 16, torch.float32)
    q, k, _ = unpacked(None, inputs[0].clone())
    q[1, 0] = 1.0
    q[1, 0, 0] = float("inf")
    found, _ = forward.forward_triton(q, k, *inputs[1:3], None)
    assert found[1, 0, 0].isnan()
    assert found[1, 0, 1:].abs().max() == 0
