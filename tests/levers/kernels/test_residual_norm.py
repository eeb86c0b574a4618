"""The fused residual and norm: plain PyTorch, the Triton kernels interpreted, the autograd node."""

from __future__ import annotations

import importlib
import itertools
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from levers.kernels.affine_norm import affine_norm_to
from levers.kernels.gate_residual import gate_residual
from levers.kernels.modulate import modulate_to
from levers.kernels.residual_norm import residual_norm, residual_norm_to
from levers.kernels.residual_norm_cases import FORMS, Form
from levers.kernels.segment_sum_cases import CutByOffsets

LENGTHS = [(1,), (7, 8, 9), (0, 5, 0, 35)]
DTYPES = [torch.float32, torch.bfloat16]

# The interpreter rounds fp32 to bf16 towards zero; the device, held to half a unit, to nearest.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2.0**-6}

forms = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def cut(lengths: tuple[int, ...]) -> CutByOffsets:
    return CutByOffsets(torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32))


@dataclass(frozen=True)
class Drawn:
    """One call's tensors, the gradients of norm and sum, and where the samples lie."""

    form: Form
    tensors: tuple[Tensor, ...]
    grads: tuple[Tensor, Tensor]
    segments: CutByOffsets

    @classmethod
    def of(cls, form: Form, lengths: tuple[int, ...], channels: int, dtype: torch.dtype) -> Drawn:
        """As a block has them: gate, shift and scale are columns of one ``[B, 6C]``."""
        draw = torch.Generator().manual_seed(11)
        x, h, *rows = form.draw(sum(lengths), len(lengths), channels, draw)
        grads = torch.randn(2, sum(lengths), channels, generator=draw).to(dtype)
        if form.modulated:
            rows = list(torch.cat(rows, dim=1).to(dtype).chunk(len(rows), dim=1))
        elif form.gated:
            rows[0] = rows[0].to(dtype)
        return cls(form, (x.to(dtype), h.to(dtype), *rows), (grads[0], grads[1]), cut(lengths))

    @property
    def dtype(self) -> torch.dtype:
        return self.tensors[0].dtype

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]:
        x, h, *gates, shift, scale = self.tensors
        return x, h, (gates[0] if gates else None), shift, scale

    def leaves(self) -> tuple[Tensor, ...]:
        return tuple(one.detach().requires_grad_() for one in self.tensors)

    def truth(self, *, norm: bool = True, stream: bool = True) -> list[Tensor]:
        """Norm, sum and the gradients of all tensors in fp64."""
        leaves = [one.double().requires_grad_() for one in self.tensors]
        results = self.form.original(tuple(leaves), self.segments, torch.float64)
        used = [
            (result, grad.double())
            for result, grad, wanted in zip(results, self.grads, (norm, stream), strict=True)
            if wanted
        ]
        outputs, grads = [one for one, _ in used], [grad for _, grad in used]
        found = torch.autograd.grad(outputs, leaves, grads, allow_unused=True)
        return [*(one.detach() for one in results), *found]


def close(found: Tensor, true: Tensor, dtype: torch.dtype) -> None:
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(found.double(), true, rtol=tolerance, atol=4 * tolerance)


@pytest.fixture
def interpreted() -> ModuleType:
    """The launchers' module under Triton's interpreter (see conftest.py)."""
    pytest.importorskip("triton", reason="triton is not installed")
    if torch.cuda.is_available():
        pytest.skip("the kernel runs on the device here (tests/gpu)")
    return importlib.import_module("levers.kernels.residual_norm_launch")


def launched(kernels: ModuleType, one: Drawn, *, stream: bool = True, sums: bool = True) -> Any:
    """Both directions: norm, sum, and the gradients as the backward gives them."""
    x, h, gate, shift, scale = one.parts
    by = kernels.Rows(gate, scale, shift, one.segments.cu_seqlens)
    y, out, mean, rstd = kernels.forward_triton(x, h, by, eps=1e-6, dtype=one.dtype)
    grads = (one.grads[0], one.grads[1] if stream else None)
    back = kernels.backward_triton(grads, (out, h, mean, rstd), by, sums=sums)
    return SimpleNamespace(y=y, out=out, back=back)


def in_order(found: Any, form: Form) -> tuple[Tensor, ...]:
    """As the truth has them."""
    back = found.back
    gate = (back.dgate,) if form.gated else ()
    return found.y, found.out, back.dx, back.dh, *gate, back.dshift, back.dscale


@forms
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_plain_form_is_the_norm_of_the_sum(
    form: Form, lengths: tuple[int, ...], dtype: torch.dtype
) -> None:
    one = Drawn.of(form, lengths, 24, dtype)
    leaves = one.leaves()
    results = form.fused(leaves, one.segments, dtype)
    found = (*results, *torch.autograd.grad(results, leaves, one.grads))
    for ours, true, like in zip(found, one.truth(), (*one.grads, *one.tensors), strict=True):
        assert ours.dtype == like.dtype
        assert ours.shape == true.shape
        close(ours, true, dtype)


@forms
@pytest.mark.parametrize(("lengths", "channels"), [((1,), 64), ((3, 0, 9), 90)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernels_are_the_norm_of_the_sum(
    interpreted: ModuleType,
    form: Form,
    lengths: tuple[int, ...],
    channels: int,
    dtype: torch.dtype,
) -> None:
    one = Drawn.of(form, lengths, channels, dtype)
    found = in_order(launched(interpreted, one), form)
    for ours, true, like in zip(found, one.truth(), (*one.grads, *one.tensors), strict=True):
        assert ours.dtype == like.dtype
        assert ours.shape == true.shape
        close(ours, true, dtype)


@forms
def test_the_kernels_are_the_two_apart(interpreted: ModuleType, form: Form) -> None:
    """But for the order of sums, and so few last places of what is normed."""
    one = Drawn.of(form, (11, 1), 64, torch.bfloat16)
    x, h, gate, shift, scale = one.parts
    cu = one.segments.cu_seqlens
    gates = importlib.import_module("levers.kernels.gate_residual_triton")
    norms = importlib.import_module("levers.kernels.row_norm_triton")
    out = x + h if gate is None else gates.forward_triton(x, h, gate, cu)
    rows = (scale, shift, cu) if form.modulated else (scale[None], shift[None], None)
    y, mean, rstd = norms.forward_triton(
        out, *rows, eps=1e-6, plus_one=form.modulated, dtype=one.dtype
    )
    grad, stream = one.grads
    dx, dscale, dshift = norms.backward_triton(
        grad, stream, out, mean, rstd, rows[0], rows[2], plus_one=form.modulated, sums=True
    )
    dh = dx if gate is None else gates.backward_triton(dx, h, gate, cu, sums=False)[0]
    found = launched(interpreted, one)
    if gate is not None:
        assert torch.equal(found.out, out)
        assert float((found.y != y).double().mean()) < 0.02
        assert float((found.back.dx != dx).double().mean()) < 0.02
        assert float((found.back.dh != dh).double().mean()) < 0.02
        close(found.y, y.double(), torch.bfloat16)
        close(found.back.dx, dx.double(), torch.bfloat16)
        close(found.back.dh, dh.double(), torch.bfloat16)
    for ours, theirs in ((found.back.dscale, dscale), (found.back.dshift, dshift)):
        close(ours, theirs.double().view_as(ours), torch.bfloat16)


@forms
def test_its_plain_form_is_the_two_apart_bit_for_bit(form: Form) -> None:
    one = Drawn.of(form, (40, 3, 25), 32, torch.bfloat16)

    def apart(x: Tensor, h: Tensor, *rows: Tensor) -> tuple[Tensor, Tensor]:
        *gates, shift, scale = rows
        out = gate_residual(x, h, gates[0], one.segments) if gates else x + h
        if form.modulated:
            return modulate_to(out, shift, scale, one.segments, one.dtype)
        return affine_norm_to(out, scale, shift, one.dtype)

    found = []
    for call in (lambda *t: form.fused(t, one.segments, one.dtype), apart):
        leaves = one.leaves()
        results = call(*leaves)
        found.append((*results, *torch.autograd.grad(results, leaves, one.grads)))
    assert all(map(torch.equal, *found))


@forms
def test_a_sum_that_nothing_used_has_no_gradient_to_read(
    interpreted: ModuleType, form: Form
) -> None:
    one = Drawn.of(form, (2, 3), 24, torch.float32)
    found = in_order(launched(interpreted, one, stream=False), form)[2:]
    for ours, true in zip(found, one.truth(stream=False)[2:], strict=True):
        close(ours, true, torch.float32)


@forms
def test_either_result_may_go_unused(form: Form) -> None:
    one = Drawn.of(form, (7, 2), 8, torch.float32)
    leaves = one.leaves()
    normed, out = form.fused(leaves, one.segments, torch.float32)
    alone = torch.autograd.grad(normed, leaves, one.grads[0], retain_graph=True)
    for ours, true in zip(alone, one.truth(stream=False)[2:], strict=True):
        close(ours, true, torch.float32)
    passed = torch.autograd.grad(out, leaves, one.grads[1], allow_unused=True)
    for some, true in zip(passed, one.truth(norm=False)[2:], strict=True):
        assert (some is None) == (true is None)
        if some is not None:
            close(some, true, torch.float32)


@forms
def test_frozen_rows_cost_no_sums(interpreted: ModuleType, form: Form) -> None:
    one = Drawn.of(form, (5, 2), 32, torch.float32)
    back = launched(interpreted, one, sums=False).back
    assert (back.dgate, back.dscale, back.dshift) == (None, None, None)
    true = one.truth()
    close(back.dx, true[2], torch.float32)
    close(back.dh, true[3], torch.float32)


def test_frozen_rows_get_no_gradient_in_the_plain_form() -> None:
    one = Drawn.of(FORMS["gated, modulated"], (5, 9), 8, torch.float32)
    x, h, gate, shift, scale = one.parts
    leaves = (x.detach().requires_grad_(), h.detach().requires_grad_())
    results = residual_norm_to(*leaves, gate, shift, scale, one.segments, torch.float32)
    for ours, true in zip(
        torch.autograd.grad(results, leaves, one.grads), one.truth()[2:4], strict=True
    ):
        close(ours, true, torch.float32)


def test_the_kernels_read_rows_and_gradients_with_any_stride(interpreted: ModuleType) -> None:
    one = Drawn.of(FORMS["gated, affine"], (3, 2), 16, torch.float32)
    x, h, gate, shift, scale = one.parts
    assert gate is not None
    turned = x.t().contiguous().t()
    wide = torch.cat([h, h], dim=1)[:, :16]
    every_other = torch.stack([scale, scale], dim=1)[:, 0]
    apart = Drawn(
        one.form,
        (turned, wide, gate.t().contiguous().t(), shift, every_other),
        (one.grads[0].t().contiguous().t(), torch.cat(one.grads[::-1], dim=1)[:, :16]),
        one.segments,
    )
    for ours, true in zip(
        in_order(launched(interpreted, apart), one.form), one.truth(), strict=True
    ):
        close(ours, true, torch.float32)


def test_the_kernels_repeat_themselves_bit_for_bit(interpreted: ModuleType) -> None:
    one = Drawn.of(FORMS["gated, modulated"], (34, 1), 16, torch.float32)
    runs = [in_order(launched(interpreted, one), one.form) for _ in range(2)]
    assert all(map(torch.equal, *runs))


@pytest.mark.parametrize("rows", [1, 5])
def test_any_cut_of_the_rows_gives_the_same_rows(interpreted: ModuleType, rows: int) -> None:
    one = Drawn.of(FORMS["gated, affine"], (8, 0, 3), 24, torch.float32)
    x, h, gate, shift, scale = one.parts
    by = interpreted.Rows(gate, scale, shift, one.segments.cu_seqlens)
    other = interpreted.Cut(rows, 16)
    y, out, mean, rstd = interpreted.forward_triton(
        x, h, by, eps=1e-6, dtype=torch.float32, cut=other
    )
    back = interpreted.backward_triton(one.grads, (out, h, mean, rstd), by, sums=True, cut=other)
    first = launched(interpreted, one)
    assert torch.equal(y, first.y)
    assert torch.equal(back.dx, first.back.dx)
    for ours, true in zip((back.dgate, back.dshift, back.dscale), one.truth()[4:], strict=True):
        close(ours, true, torch.float32)


@forms
def test_gradcheck_holds_in_fp64(form: Form) -> None:
    one = Drawn.of(form, (3, 1, 4), 5, torch.float32)
    leaves = [t.double().detach().requires_grad_() for t in one.tensors]
    assert torch.autograd.gradcheck(lambda *t: form.fused(t, one.segments, torch.float64), leaves)


def test_a_branch_without_a_gate_takes_the_streams_gradient_itself() -> None:
    one = Drawn.of(FORMS["modulated"], (3, 2), 8, torch.float32)
    leaves = one.leaves()
    results = one.form.fused(leaves, one.segments, torch.float32)
    dx, dh, *_ = torch.autograd.grad(results, leaves, one.grads)
    assert dx.data_ptr() == dh.data_ptr()


@forms
def test_it_keeps_the_sum_and_a_gated_branch_and_no_other_rows(form: Form) -> None:
    one = Drawn.of(form, (30, 20), 64, torch.bfloat16)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        form.fused(one.leaves(), one.segments, torch.bfloat16)
    large = [t for t in kept if t.numel() >= one.tensors[0].numel()]
    assert [t.dtype for t in large] == [torch.bfloat16] * (1 + form.gated)


def test_it_rounds_to_what_the_next_linear_multiplies_in() -> None:
    one = Drawn.of(FORMS["modulated"], (3, 2), 8, torch.bfloat16)
    assert residual_norm(*one.parts, one.segments)[0].dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        normed, out = residual_norm(*one.parts, one.segments)
    assert normed.dtype == out.dtype == torch.bfloat16


def test_two_dtypes_where_one_gradient_serves_both_are_refused() -> None:
    one = Drawn.of(FORMS["modulated"], (3, 2), 8, torch.bfloat16)
    x, h, gate, shift, scale = one.parts
    with pytest.raises(TypeError, match=r"x is torch.float32 and h torch.bfloat16"):
        residual_norm(x.float(), h, gate, shift, scale, one.segments)
    with pytest.raises(TypeError, match=r"shift is torch.float32"):
        residual_norm(x, h, gate, shift.float(), scale, one.segments)


@forms
def test_a_compiled_graph_holds_it_without_a_break(form: Form) -> None:
    torch._dynamo.reset()
    one = Drawn.of(form, (5, 7, 3), 8, torch.float32)
    assert len(one.segments.offsets) == 4
    compiled = torch.compile(form.fused, backend="aot_eager", fullgraph=True)
    found = []
    for call in (form.fused, compiled):
        leaves = one.leaves()
        results = call(leaves, one.segments, torch.float32)
        found.append((*results, *torch.autograd.grad(results, leaves, one.grads)))
    for eager, graph in zip(*found, strict=True):
        torch.testing.assert_close(graph, eager)
