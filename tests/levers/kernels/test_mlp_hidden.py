"""The MLP's hidden layer: plain PyTorch against the original, the node, the Linear it is over."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from levers.kernels.mlp_hidden import FusedMlpHidden, GeluAndBiasGrad, over_linear_of


def parameters(dtype: torch.dtype, rows: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, weight and bias that need gradients."""
    draw = torch.Generator().manual_seed(2)
    x, w, b = (torch.randn(*shape, generator=draw) for shape in ((rows, 6), (10, 6), (10,)))
    return x.to(dtype).requires_grad_(), w.to(dtype).requires_grad_(), b.to(dtype).requires_grad_()


def rounded(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias).bfloat16()


def test_the_forward_is_the_original_bit_for_bit() -> None:
    x, w, b = parameters(torch.float32)
    ours = FusedMlpHidden(rounded)(x, w, b)
    assert ours.dtype == torch.bfloat16
    assert torch.equal(ours, F.gelu(rounded(x, w, b), approximate="tanh"))


def test_gradcheck_holds_in_fp64() -> None:
    assert torch.autograd.gradcheck(FusedMlpHidden(), parameters(torch.float64))


def test_the_bias_gets_the_sum_of_the_preactivations_gradient_before_rounding() -> None:
    h = torch.randn(300, 7, generator=torch.Generator().manual_seed(1)).bfloat16()
    bias = torch.zeros(7, requires_grad=True)
    out = GeluAndBiasGrad.apply(h.requires_grad_(), bias)  # type: ignore[no-untyped-call]
    grad = torch.randn(300, 7, generator=torch.Generator().manual_seed(5)).bfloat16() + 1
    dh, dbias = torch.autograd.grad(out, (h, bias), grad)
    wide = h.detach().double().requires_grad_()
    (truth,) = torch.autograd.grad(F.gelu(wide, approximate="tanh"), wide, grad.double())
    assert (dh.dtype, dbias.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(dbias.double(), truth.sum(0), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(dh.double(), truth, rtol=2**-8, atol=2**-8)


def test_the_linear_is_handed_a_bias_that_needs_no_gradient() -> None:
    seen: list[bool] = []

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        assert bias is not None
        seen.append(bias.requires_grad)
        return F.linear(x, weight, bias)

    x, w, b = parameters(torch.float64)
    torch.autograd.backward(FusedMlpHidden(linear)(x, w, b).sum())
    assert seen == [False]
    assert b.grad is not None


def test_the_preactivation_alone_is_kept_beside_what_the_linear_keeps() -> None:
    x, w, b = parameters(torch.float32)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        h = F.linear(x, w, b.detach())
        before = len(kept)
        GeluAndBiasGrad.apply(h, b)  # type: ignore[no-untyped-call]
    assert [one.data_ptr() for one in kept[before:]] == [h.data_ptr()]


def test_frozen_parameters_get_no_gradient_and_the_rows_still_do() -> None:
    x, w, b = parameters(torch.float64)
    out = FusedMlpHidden()(x, w.detach(), b.detach())
    (dx,) = torch.autograd.grad(out.sum(), x)
    (truth,) = torch.autograd.grad(F.gelu(F.linear(x, w, b), approximate="tanh").sum(), x)
    torch.testing.assert_close(dx, truth)


def test_it_takes_over_the_linear_of_the_layer_that_it_replaces() -> None:
    class Layer:
        linear = staticmethod(rounded)

        def __call__(self) -> Tensor:
            return torch.zeros(1)

    assert over_linear_of(Layer()).linear is rounded
    assert over_linear_of(lambda: torch.zeros(1)).linear is F.linear


@pytest.mark.parametrize("value", [-30.0, -5.0, 0.0, 5.0, 30.0])
def test_the_tails_have_the_right_slope(value: float) -> None:
    h = torch.full((1, 1), value, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    out = GeluAndBiasGrad.apply(h, bias)  # type: ignore[no-untyped-call]
    dh, dbias = torch.autograd.grad(out.sum(), (h, bias))
    assert dh.item() == dbias.item()
    assert dh.item() == pytest.approx({-30.0: 0, -5.0: 0, 0.0: 0.5}.get(value, 1.0), abs=1e-5)


# what PyTorch 2.13 warns of is its own tracing of a Function
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_compiler_traces_it_into_one_graph() -> None:
    leaves, layer = parameters(torch.float32), FusedMlpHidden()
    found = []
    for call in (layer, torch.compile(layer, backend="aot_eager", fullgraph=True)):
        out = call(*leaves)
        found.append((out, *torch.autograd.grad(out, leaves, torch.ones_like(out))))
    for eager, compiled in zip(*found, strict=True):
        torch.testing.assert_close(eager, compiled)
