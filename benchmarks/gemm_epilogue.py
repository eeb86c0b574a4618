"""The products of a block by cuBLASLt: right against fp64, and how fast, with which algorithm.

    OUT=/tmp/out python -m benchmarks.gemm_epilogue [--device cuda:0] [--rehearse]

In this order, each line printed and written to ``$OUT/gemm_epilogue.json`` as it is known:

1. check: every product against fp64, beside PyTorch's own, at three sizes. What the library refuses
   is a line with the status's name.
2. hidden: the MLP's first Linear with GELU, forward and backward: PyTorch's product and our
   element-wise kernels against the epilogues.
3. mlp: the whole MLP, forward and backward, as the levers run it.
4. gemm: each product of a block in its three forms: PyTorch's choice, the library's first proposal,
   and the fastest of all proposals, of those that the levers measure and of as many as are asked
   for (``--proposals``).
5. bias: each bias's gradient by the epilogue of the weight's product (BGRADB), or by the column-sum
   kernel after it.

Times are medians of interleaved rounds on random operands. A line that fails says why, and the
others go on; a part of which every line fails ends the program with 1. This is a benchmark of
operations and no verdict.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gemm_epilogue_checks import check
from benchmarks.gemm_epilogue_report import (
    Bench,
    Call,
    Report,
    at_least_one,
    device,
    file_in_out,
    host_us,
)
from levers.kernels import cublaslt_products as products
from levers.kernels.cublaslt import CANDIDATES, DEVICES
from levers.kernels.cublaslt_abi import Epilogue
from levers.kernels.cublaslt_plan import Operands
from levers.kernels.cublaslt_tuning import device_us, interleaved_us
from levers.kernels.linear_grads import FusedLinearGrads, column_sums, product
from levers.kernels.mlp_epilogue import EpilogueMlps, Fusion
from levers.kernels.mlp_epilogue_cases import Dtypes, PublishedMlp
from levers.kernels.mlp_hidden import FusedMlpHidden, backward_torch

BF16, FP32 = torch.bfloat16, torch.float32

CHANNELS, WIDTH = 1536, 8192
TOKENS = {"SS bs8": 32_768, "SLAT bs8": 19_812}
LINEARS = {
    "qkv": (CHANNELS, 3 * CHANNELS),
    "out": (CHANNELS, CHANNELS),
    "up": (CHANNELS, WIDTH),
    "down": (WIDTH, CHANNELS),
}
"""Inputs and outputs of a block's Linears."""

CHECKS = ((129, 40, 72), (2051, CHANNELS, WIDTH), (19_812, CHANNELS, WIDTH))
"""Rows, channels and hidden width."""


def hidden(bench: Bench, case: str, rows: int, channels: int, width: int) -> None:
    """The first Linear with its activation, each way."""
    x, grad = bench.drawn(rows, channels), bench.drawn(rows, channels, seed=1)
    up, down = bench.drawn(width, channels, seed=2) / 40, bench.drawn(channels, width, seed=3) / 90
    bias = bench.drawn(width, seed=4)
    h = F.linear(x, up, bias)
    flop = 2.0 * rows * channels * width
    forward: dict[str, Call] = {
        "PyTorch's product": lambda: F.linear(x, up, bias),
        "PyTorch's product, our GELU": lambda: gelu_kernel(F.linear(x, up, bias)),
        "library's product, our GELU": lambda: gelu_kernel(products.linear(x, up, bias, BF16)),
        "library's product": lambda: products.linear(x, up, bias, BF16),
        "GELU_AUX_BIAS": lambda: products.linear_gelu(x, up, bias, BF16),
    }
    bench.compare("hidden", f"{case} forward", forward, flop, "PyTorch's product, our GELU")

    def separate_sum() -> Tensor:
        dh, _ = products.gelu_grad(grad, down, h, False)
        return column_sums(dh, FP32)

    backward: dict[str, Call] = {
        "PyTorch's product": lambda: grad @ down,
        "PyTorch's product, our kernel": lambda: gelu_backward_kernel(h, grad @ down),
        "library's product": lambda: products.input_grad(grad, down, BF16),
        "DGELU": lambda: products.gelu_grad(grad, down, h, False),
        "DGELU, column sums": separate_sum,
        "DGELU_BGRAD": lambda: products.gelu_grad(grad, down, h, True),
    }
    bench.compare("hidden", f"{case} backward", backward, flop, "PyTorch's product, our kernel")


def gelu_kernel(h: Tensor) -> Tensor:
    """Our element-wise GELU."""
    if h.device.type == "cuda":
        from levers.kernels.mlp_hidden_triton import gelu_triton

        return gelu_triton(h)
    return F.gelu(h, approximate="tanh")


def gelu_backward_kernel(h: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Our element-wise gradient with the bias's sums."""
    if h.device.type == "cuda":
        from levers.kernels.mlp_hidden_triton import gelu_backward_triton

        return gelu_backward_triton(h, grad)
    return backward_torch(h, grad)


def mlp(bench: Bench, case: str, rows: int, channels: int, width: int) -> None:
    """The whole MLP with fp32 parameters under autocast, forward and backward."""
    drawn = partial(bench.drawn, dtype=FP32)
    x = bench.drawn(rows, channels).requires_grad_()
    parameters = [
        one.requires_grad_()
        for one in (
            drawn(width, channels, seed=2) / 40, drawn(width, seed=4),
            drawn(channels, width, seed=3) / 90, drawn(channels, seed=5),
        )
    ]  # fmt: skip
    grad = bench.drawn(rows, channels, seed=1)
    found = PublishedMlp(Dtypes(BF16, BF16), autocast=True)
    linear = FusedLinearGrads(F.linear)
    layer = FusedMlpHidden(linear)

    def fused(x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor) -> Tensor:
        return linear(layer(x, up, up_bias), down, down_bias)

    def both(call: Callable[..., Tensor]) -> object:
        with torch.autocast(torch.device(bench.device).type, dtype=BF16):
            out = call(x, *parameters)
        return torch.autograd.grad(out, (x, *parameters), grad)

    arms: dict[str, Call] = {
        "original": partial(both, found),
        "fused_mlp_hidden, fp32 gradients": partial(both, fused),
        "gemm_epilogue_mlp on": partial(both, EpilogueMlps(found, Fusion())),
        "gemm_epilogue_mlp bgrad": partial(both, EpilogueMlps(found, Fusion(sums=True))),
        "gemm_epilogue_mlp bgradb": partial(both, EpilogueMlps(found, Fusion(beside=True))),
        "gemm_epilogue_mlp backward": partial(
            both, EpilogueMlps(found, Fusion(active=False, sums=True))
        ),
    }
    flop = 12.0 * rows * channels * width
    bench.compare("mlp", case, arms, flop, "fused_mlp_hidden, fp32 gradients")


def gemm(bench: Bench, case: str, rows: int, name: str, inputs: int, outputs: int) -> None:
    """One Linear's products: PyTorch's choice, and each of the library's proposals."""
    x, grad = bench.drawn(rows, inputs), bench.drawn(rows, outputs, seed=1)
    weight, bias = bench.drawn(outputs, inputs, seed=2) / 40, bench.drawn(outputs, seed=3)
    forms: dict[str, tuple[Call, Tensor, object]] = {
        "fprop": (
            lambda: F.linear(x, weight, bias),
            grad.new_empty(rows, outputs),
            lambda out: (
                products.linear_problem(x, weight, BF16, Epilogue.BIAS),
                Operands(weight, x, out, bias),
            ),
        ),
        "dgrad": (
            lambda: grad @ weight,
            grad.new_empty(rows, inputs),
            lambda out: (
                products.input_problem(grad, weight, BF16, Epilogue.DEFAULT),
                Operands(weight, grad, out),
            ),
        ),
        "wgrad fp32": (
            lambda: product(grad.t(), x, FP32),
            grad.new_empty(outputs, inputs, dtype=FP32),
            lambda out: (products.weight_problem(grad, x, FP32), Operands(x, grad, out)),
        ),
        "wgrad bf16": (
            lambda: grad.t() @ x,
            grad.new_empty(outputs, inputs),
            lambda out: (products.weight_problem(grad, x, BF16), Operands(x, grad, out)),
        ),
    }
    for form, (torchs, out, make) in forms.items():
        what = f"{name} {form}"
        bench.report.attempt(
            "gemm", case, what, partial(_gemm_line, bench, case, what, torchs, make, out)
        )


def _gemm_line(
    bench: Bench,
    case: str,
    what: str,
    torchs: Call,
    make: Callable[[Tensor], tuple[products.Problem, Operands]],
    out: Tensor,
) -> None:
    problem, operands = make(out)
    (before,) = interleaved_us([torchs], bench.clock)
    lt = DEVICES.at(torch.device(bench.device).index or 0)
    proposals = lt.measured(problem, operands, bench.proposals)
    (after,) = interleaved_us([torchs], bench.clock)
    name, fastest = min(proposals, key=lambda one: one[1])
    usual = min(time_us for _, time_us in proposals[:CANDIDATES])
    theirs = statistics.median((before, after))
    rate = problem.flop / 1e6
    bench.report.add(
        "gemm", case, what,
        torch_us=theirs, torch_tflop_s=rate / theirs,
        first_us=proposals[0][1], first_tflop_s=rate / proposals[0][1],
        best_us=fastest, best_tflop_s=rate / fastest, gain=theirs / fastest,
        gain_of_more=usual / fastest,
        proposals=len(proposals), best=name,
    )  # fmt: skip


def bias(bench: Bench, case: str, rows: int, name: str, inputs: int, outputs: int) -> None:
    """One Linear's gradients of weight and bias."""
    x, grad = bench.drawn(rows, inputs), bench.drawn(rows, outputs, seed=1)
    arms: dict[str, Call] = {
        f"{name}: weight alone": lambda: products.weight_grad(grad, x, FP32),
        f"{name}: column sums after it": lambda: (
            products.weight_grad(grad, x, FP32),
            column_sums(grad, FP32),
        ),
        f"{name}: BGRADB": lambda: products.both_grads(grad, x, FP32),
    }
    flop = 2.0 * rows * inputs * outputs
    bench.compare("bias", case, arms, flop, f"{name}: column sums after it")


PARTS = ("check", "hidden", "mlp", "gemm", "bias")


def run(
    device: str,
    *,
    rehearse: bool,
    out: Path | None,
    only: Sequence[str] = PARTS,
    proposals: int = CANDIDATES,
) -> Report:
    """The parts that are asked for, in turn."""
    on_cuda = torch.device(device).type == "cuda"
    kind = torch.cuda.get_device_name(device) if on_cuda else "cpu"
    head = {"device": kind, "torch": torch.__version__, "rehearsal": rehearse}
    bench = Bench(device, Report(out, head), device_us if on_cuda else host_us, proposals)
    checks = CHECKS[:1] if rehearse else CHECKS
    tokens = {"rehearsal": 64} if rehearse else TOKENS
    linears = {"up": (32, 48)} if rehearse else LINEARS
    size = (32, 48) if rehearse else (CHANNELS, WIDTH)
    if "check" in only:
        for shape in checks:
            bench.report.attempt("check", str(shape), "", partial(check, bench, *shape))
    for part, whole in (("hidden", hidden), ("mlp", mlp)):
        for case, rows in tokens.items() if part in only else ():
            bench.report.attempt(part, case, "", partial(whole, bench, case, rows, *size))
    for part, one in (("gemm", gemm), ("bias", bias)):
        for case, rows in tokens.items() if part in only else ():
            for name, sides in linears.items():
                work = partial(one, bench, case, rows, name, *sides)
                bench.report.attempt(part, case, name, work)
    for problem, winner in sorted(DEVICES.winners().items()):
        bench.report.add("winner", problem, winner)
    return bench.report


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    usual = "cuda:0" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", type=device, default=usual)
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    parser.add_argument(
        "--proposals", type=at_least_one, default=CANDIDATES, help="measured of each product"
    )
    options = parser.parse_args(arguments)
    report = run(
        options.device,
        rehearse=options.rehearse,
        out=file_in_out(parser, "gemm_epilogue.json"),
        only=options.only,
        proposals=options.proposals,
    )
    return report.exit_code(options.only)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
