"""The products on a CPU, the problems that they are for the library, and the MLP on them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from levers.kernels import cublaslt_linear, cublaslt_ops
from levers.kernels import cublaslt_products as products
from levers.kernels.cublaslt_abi import Epilogue, Kind
from levers.kernels.cublaslt_linear import TunedLinears, parameter_grads
from levers.kernels.cublaslt_plan import Operands, Problem
from levers.kernels.mlp_epilogue import EpilogueMlps, Fusion
from levers.kernels.mlp_epilogue_cases import Dtypes, PublishedMlp

BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64
FUSIONS = [Fusion(), Fusion(sums=True), Fusion(active=False), Fusion(beside=True)]
ROWS, CHANNELS, WIDTH = 9, 6, 10


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = FP64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=FP64).to(dtype)


def leaves(dtype: torch.dtype = FP64) -> list[Tensor]:
    """Rows, both weights and both biases that need gradients."""
    shapes = ((ROWS, CHANNELS), (WIDTH, CHANNELS), (WIDTH,), (CHANNELS, WIDTH), (CHANNELS,))
    return [
        drawn(*shape, seed=i).to(BF16).to(dtype).requires_grad_() for i, shape in enumerate(shapes)
    ]


def over(dtype: torch.dtype, fusion: Fusion) -> EpilogueMlps:
    return EpilogueMlps(PublishedMlp(Dtypes(dtype, dtype), autocast=False), fusion)


def column_major(tensor: Tensor, rows: int, columns: int) -> Tensor:
    """What the library sees of a dense tensor."""
    return tensor.reshape(-1).view(columns, rows).t()


class Emulated:
    """In place of the library: computes a problem column-major, in fp64, as its documents say."""

    def __init__(self) -> None:
        self.epilogues: list[Epilogue] = []

    def __call__(self, problem: Problem, operands: Operands) -> None:
        p = problem
        self.epilogues.append(p.epilogue)
        a = column_major(operands.a, *((p.k, p.m) if p.transpose_a else (p.m, p.k))).double()
        b = column_major(operands.b, *((p.n, p.k) if p.transpose_b else (p.k, p.n))).double()
        d = (a.t() if p.transpose_a else a) @ (b.t() if p.transpose_b else b)
        if p.epilogue in (Epilogue.BIAS, Epilogue.GELU_AUX_BIAS):
            assert operands.bias is not None
            d = d + operands.bias.double()[:, None]
        if p.epilogue == Epilogue.GELU_AUX_BIAS:
            assert operands.aux is not None
            column_major(operands.aux, p.m, p.n).copy_(d)
            d = F.gelu(d, approximate="tanh")
        if p.epilogue in (Epilogue.DGELU, Epilogue.DGELU_BGRAD):
            assert operands.aux is not None
            h = column_major(operands.aux, p.m, p.n).double()
            d = torch.ops.aten.gelu_backward(d, h, approximate="tanh")
        if p.epilogue == Epilogue.DGELU_BGRAD:
            assert operands.bias is not None
            operands.bias.copy_(d.sum(1))
        if p.epilogue == Epilogue.BGRADB:
            assert operands.bias is not None
            operands.bias.copy_((b.t() if p.transpose_b else b).sum(0))
        column_major(operands.out, p.m, p.n).copy_(d)


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Emulated:
    found = Emulated()
    monkeypatch.setattr(products, "run", found)
    return found


def inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Rows, weight, bias, the output's gradient and a pre-activation."""
    x, weight = drawn(ROWS, CHANNELS, dtype=dtype), drawn(WIDTH, CHANNELS, seed=1, dtype=dtype)
    bias, grad = drawn(WIDTH, seed=2, dtype=dtype), drawn(ROWS, WIDTH, seed=3, dtype=dtype)
    return x, weight, bias, grad, drawn(ROWS, CHANNELS, seed=4, dtype=dtype)


def test_each_product_is_the_librarys_problem_for_the_same_function(emulated: Emulated) -> None:
    x, weight, bias, grad, h = inputs(FP32)
    pairs = [
        (products.linear_lt(x, weight, bias, FP32), products.linear(x, weight, bias, FP32)),
        (products.linear_lt(x, weight, None, FP32), products.linear(x, weight, None, FP32)),
        (products.input_grad_lt(grad, weight, FP32), products.input_grad(grad, weight, FP32)),
        (products.weight_grad_lt(grad, x, FP32), products.weight_grad(grad, x, FP32)),
        *zip(
            products.linear_gelu_lt(x, weight, bias, FP32),
            products.linear_gelu(x, weight, bias, FP32),
            strict=True,
        ),
        *zip(
            products.gelu_grad_lt(grad, weight, h, True),
            products.gelu_grad(grad, weight, h, True),
            strict=True,
        ),
        *zip(
            products.gelu_grad_lt(grad, weight, h, False),
            products.gelu_grad(grad, weight, h, False),
            strict=True,
        ),
        *zip(
            products.both_grads_lt(grad, x, FP32),
            products.both_grads(grad, x, FP32),
            strict=True,
        ),
    ]
    for library, plain in pairs:
        torch.testing.assert_close(library, plain, rtol=1e-5, atol=1e-5)
    assert emulated.epilogues == [
        Epilogue.BIAS, Epilogue.DEFAULT, Epilogue.DEFAULT, Epilogue.DEFAULT,
        Epilogue.GELU_AUX_BIAS, Epilogue.DGELU_BGRAD, Epilogue.DGELU, Epilogue.BGRADB,
    ]  # fmt: skip


def test_the_library_takes_rows_on_cuda_and_sides_of_eight() -> None:
    rows = torch.empty(3, 8, device="meta")
    assert not products.on_library(rows, 8, 16)

    class Cuda:
        is_cuda = True

        def __init__(self, count: int) -> None:
            self.count = count

        def numel(self) -> int:
            return self.count

    assert products.on_library(Cuda(24), 8, 16)  # type: ignore[arg-type]
    assert not products.on_library(Cuda(24), 8, 12)  # type: ignore[arg-type]
    assert not products.on_library(Cuda(0), 8, 16)  # type: ignore[arg-type]


def test_a_compilers_stand_in_of_a_cuda_tensor_is_on_the_library_too() -> None:
    with FakeTensorMode():
        assert products.on_library(torch.empty(3, 8, device="cuda"), 8, 16)
        assert not products.on_library(torch.empty(3, 8), 8, 16)


def test_the_same_shapes_are_the_same_problem_object() -> None:
    x, weight, _, grad, _ = inputs(BF16)
    for make in (
        lambda: products.linear_problem(x, weight, BF16, Epilogue.BIAS),
        lambda: products.input_problem(grad, weight, BF16, Epilogue.DEFAULT),
        lambda: products.weight_problem(grad, x, FP32),
    ):
        assert make() is make()
    forms = {
        products.linear_problem(rows, weight, dtype, epilogue)
        for rows in (x, x[:4])
        for dtype in (BF16, FP32)
        for epilogue in (Epilogue.BIAS, Epilogue.DEFAULT)
    }
    assert len(forms) == 8


def test_the_operator_is_called_inside_a_compiled_region_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, weight, bias, grad, h = inputs(FP32)
    calls = {
        "linear": (x, weight, bias, FP32),
        "linear_gelu": (x, weight, bias, FP32),
        "input_grad": (grad, weight, FP32),
        "gelu_grad": (grad, weight, h, True),
        "weight_grad": (grad, x, FP32),
        "both_grads": (grad, x, FP32),
    }
    for compiling in (False, True):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda compiling=compiling: compiling)
        for name, arguments in calls.items():
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
                getattr(cublaslt_ops, name)(*arguments)
            assert (f"levergate::{name}" in {one.name for one in seen.events()}) == compiling


def test_operands_of_any_stride_are_made_dense_for_the_library(emulated: Emulated) -> None:
    x, weight, bias, grad, h = inputs(FP32)
    turned = [one.t().contiguous().t() for one in (x, weight, grad, h)]
    assert not any(one.is_contiguous() for one in turned)
    x2, weight2, grad2, h2 = turned
    assert torch.equal(
        products.linear_lt(x2, weight2, bias, FP32), products.linear_lt(x, weight, bias, FP32)
    )
    for ours, dense in zip(
        products.gelu_grad_lt(grad2, weight2, h2, True),
        products.gelu_grad_lt(grad, weight, h, True),
        strict=True,
    ):
        assert torch.equal(ours.contiguous(), dense)
    assert emulated.epilogues


def test_problems_are_in_the_operands_dtype_and_weights_gradients_in_their_own() -> None:
    x, weight, _, grad, _ = inputs(BF16)
    up = products.linear_problem(x, weight, BF16, Epilogue.GELU_AUX_BIAS)
    assert (up.m, up.n, up.k, up.rows) == (WIDTH, ROWS, CHANNELS, "n")
    gradient = products.weight_problem(grad, x, FP32)
    assert (gradient.m, gradient.n, gradient.k, gradient.rows) == (CHANNELS, WIDTH, ROWS, "k")
    assert (gradient.operands, gradient.result) == (Kind.BF16, Kind.FP32)
    assert gradient.flop == 2 * ROWS * CHANNELS * WIDTH
    assert gradient.shared.k == 2048


@pytest.mark.parametrize("fusion", FUSIONS)
def test_gradcheck_holds_in_fp64(fusion: Fusion) -> None:
    assert torch.autograd.gradcheck(over(FP64, fusion), leaves())


@pytest.mark.parametrize("beside", [False, True])
def test_gradcheck_of_the_linear_holds_in_fp64(beside: bool) -> None:
    linear = TunedLinears(Dtypes64().linear, beside=beside)
    x, weight, bias, *_ = leaves()
    assert torch.autograd.gradcheck(linear, (x, weight, bias))
    assert torch.autograd.gradcheck(lambda x, weight: linear(x, weight, None), (x, weight))
    folded = linear(x.view(3, 3, CHANNELS), weight, bias)
    assert torch.equal(folded.view(ROWS, WIDTH), linear(x, weight, bias))


class Dtypes64:
    matmul = stream = FP64

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)


@pytest.mark.parametrize("fusion", FUSIONS)
def test_under_autocast_it_rounds_as_the_original_does(fusion: Fusion) -> None:
    x, *parameters = leaves(FP32)
    with torch.autocast("cpu", dtype=BF16):
        ours = over(FP32, fusion)(x, *parameters)
        theirs = PublishedMlp(Dtypes(BF16, BF16), autocast=True)(x, *parameters)
    assert ours.dtype == theirs.dtype == BF16
    torch.testing.assert_close(ours, theirs, rtol=2**-6, atol=2**-6)
    grads = torch.autograd.grad(ours, (x, *parameters), torch.ones_like(ours))
    assert [one.dtype for one in grads] == [FP32] * 5


def test_only_what_a_gradient_needs_is_kept() -> None:
    for trained, shapes in (
        ((True, True, True, True, True), 5),
        ((False, False, False, True, True), 1),
        ((False, False, False, False, True), 0),
        ((True, False, False, False, False), 3),
    ):
        given = [
            one.detach().requires_grad_(t) for one, t in zip(leaves(FP32), trained, strict=True)
        ]
        kept: list[Tensor] = []
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda t, kept=kept: kept.append(t) or t, lambda t: t
        )
        with hooks:
            out = over(FP32, Fusion())(*given)
        assert len(kept) == shapes
        torch.autograd.backward(out.sum())
        assert tuple(one.grad is not None for one in given) == trained


def test_no_rows_give_no_output_and_gradients_of_zero() -> None:
    x, *parameters = leaves(FP32)
    out = over(FP32, Fusion())(x[:0], *parameters)
    assert out.shape == (0, CHANNELS)
    for grad in torch.autograd.grad(out.sum(), parameters):
        assert torch.equal(grad, torch.zeros_like(grad))


# what PyTorch 2.13 warns of is its own tracing of a Function
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_compiler_takes_the_products_in_without_a_break() -> None:
    given, mlp = leaves(FP32), over(FP32, Fusion())
    found = []
    for call in (mlp, torch.compile(mlp, backend="eager", fullgraph=True)):
        out = call(*given)
        found.append((out, *torch.autograd.grad(out, given, torch.ones_like(out))))
    for eager, compiled in zip(*found, strict=True):
        torch.testing.assert_close(eager, compiled)


@pytest.mark.parametrize("beside", [False, True])
def test_the_weights_product_sums_the_biass_gradient_only_where_both_have_one_dtype(
    beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    for name in ("both_grads", "weight_grad", "column_sums"):
        plain = getattr(cublaslt_linear, name)
        monkeypatch.setattr(
            cublaslt_linear, name, lambda *a, n=name, p=plain: asked.append(n) or p(*a)
        )
    x, _, _, grad, _ = inputs(BF16)
    for dtypes, one_product in (
        ((FP32, FP32), True),
        ((FP32, BF16), False),
        ((FP32, None), False),
    ):
        asked.clear()
        dweight, dbias = parameter_grads(grad, x, dtypes, beside=beside)
        assert dweight is not None
        assert (dweight.dtype, None if dbias is None else dbias.dtype) == dtypes
        assert (asked == ["both_grads"]) == (beside and one_product)
    assert parameter_grads(grad, None, (FP32, None), beside=beside) == (None, None)
    alone = parameter_grads(grad, None, (FP32, FP32), beside=beside)[1]
    assert alone is not None
    torch.testing.assert_close(alone, grad.float().sum(0))
