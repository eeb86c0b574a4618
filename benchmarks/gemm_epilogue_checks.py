"""Every product of the library against fp64, beside PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gemm_epilogue_report import Bench
from levers.kernels import cublaslt_products as products
from levers.kernels.linear_grads import column_sums, product
from levers.kernels.mlp_hidden import backward_torch

BF16, FP32 = torch.bfloat16, torch.float32

TIGHT = 1.5
"""How many times PyTorch's error a product may have before its line says ``WRONG``; both are one
rounding to bf16 of the same fp32 sums."""

LEAST = 1e-5
"""A relative error that is good whatever PyTorch's is: that of fp32 sums."""


def error(found: Tensor, truth: Tensor) -> float:
    """Relative L2 error."""
    norm = float(truth.norm())
    return float((found.double() - truth).norm()) / norm if norm else float(found.norm())


Line = tuple[Callable[[], Sequence[Tensor]], Sequence[Tensor], Sequence[Tensor]]
"""The library's results, PyTorch's, and truth."""


@dataclass(frozen=True)
class Drawn:
    """The tensors of a check at one size, in bf16; weights are scaled for results near 1."""

    x: Tensor
    grad: Tensor
    up: Tensor
    down: Tensor
    bias: Tensor
    h: Tensor
    dh: Tensor

    @classmethod
    def of(cls, bench: Bench, rows: int, channels: int, width: int) -> Drawn:
        """Rows, the output's gradient, both weights, a bias, and a hidden layer with a gradient."""
        x, grad = bench.drawn(rows, channels), bench.drawn(rows, channels, seed=1)
        up = bench.drawn(width, channels, seed=2) * channels**-0.5
        down = bench.drawn(channels, width, seed=3) * width**-0.5
        bias, dh = bench.drawn(width, seed=4), bench.drawn(rows, width, seed=5)
        return cls(x, grad, up, down, bias, F.linear(x, up, bias), dh)

    def double(self) -> Drawn:
        """The same values in fp64."""
        return Drawn(*(getattr(self, one.name).double() for one in fields(self)))


def check(bench: Bench, rows: int, channels: int, width: int) -> None:
    """Every product at one size."""
    drawn = Drawn.of(bench, rows, channels, width)
    wide, case = drawn.double(), f"{rows} x {channels} x {width}"
    for what, line in {**forward_lines(drawn, wide), **backward_lines(drawn, wide)}.items():
        bench.report.attempt("check", case, what, partial(_check_line, bench, case, what, line))


def forward_lines(d: Drawn, true: Drawn) -> dict[str, Line]:
    """The products of the forward."""
    h_true, gelu = F.linear(true.x, true.up, true.bias), partial(F.gelu, approximate="tanh")
    return {
        "linear": (lambda: [products.linear(d.x, d.up, d.bias, BF16)], [d.h], [h_true]),
        "linear, no bias": (
            lambda: [products.linear(d.x, d.up, None, BF16)],
            [F.linear(d.x, d.up)],
            [true.x @ true.up.t()],
        ),
        "linear_gelu": (
            lambda: products.linear_gelu(d.x, d.up, d.bias, BF16),
            [gelu(d.h), d.h],
            [gelu(h_true), h_true],
        ),
    }


def backward_lines(d: Drawn, true: Drawn) -> dict[str, Line]:
    """The products of the backward."""
    dact = true.grad @ true.down
    dh_true = torch.ops.aten.gelu_backward(dact, true.h, approximate="tanh")
    dh, sums = backward_torch(d.h, d.grad @ d.down)
    dweight, sums_true = true.dh.t() @ true.x, dh_true.sum(0)
    wide_weight = product(d.dh.t(), d.x, FP32)
    return {
        "gelu_grad": (
            lambda: products.gelu_grad(d.grad, d.down, d.h, False)[:1], [dh], [dh_true],
        ),
        "gelu_grad with the bias": (
            lambda: products.gelu_grad(d.grad, d.down, d.h, True),
            [dh, sums.to(BF16)], [dh_true, sums_true],
        ),
        "input_grad": (
            lambda: [products.input_grad(d.dh, d.up, BF16)], [d.dh @ d.up], [true.dh @ true.up],
        ),
        "weight_grad in fp32": (
            lambda: [products.weight_grad(d.dh, d.x, FP32)], [wide_weight], [dweight],
        ),
        "weight_grad in bf16": (
            lambda: [products.weight_grad(d.dh, d.x, BF16)], [d.dh.t() @ d.x], [dweight],
        ),
        "weight_grad in fp32 with BGRADB": (
            lambda: products.both_grads(d.dh, d.x, FP32),
            [wide_weight, column_sums(d.dh, FP32)], [dweight, true.dh.sum(0)],
        ),
    }  # fmt: skip


def _check_line(bench: Bench, case: str, what: str, line: Line) -> None:
    ours, theirs, truth = line
    found = ours()
    errors = [error(one, true) for one, true in zip(found, truth, strict=True)]
    known = [error(one, true) for one, true in zip(theirs, truth, strict=True)]
    good = all(a <= max(TIGHT * b, LEAST) for a, b in zip(errors, known, strict=True))
    for index, (a, b) in enumerate(zip(errors, known, strict=True)):
        verdict = "ok" if good else "WRONG"
        bench.report.add(
            "check", case, f"{what} [{index}]", error=a, torch_error=b, verdict=verdict
        )
