"""What a product by cuBLASLt costs the host: now, and as it was called before, in one process.

No device is needed: the library's two functions of the hot path are a C function that returns at
once, every other one a stand-in, and the operands are small tensors on the CPU. So what is timed is
PyTorch's dispatcher, Python, ctypes and the allocation of the result; a device's own calls (current
device, current stream) are stand-ins in both forms. "Before" goes through the registered operator,
describes its problem anew, enters the device's context and sets each attribute by its name.

The forms take turns, a few dozen calls at a time, and of each the fastest turn counts: on a shared
machine all that is slower is somebody else's.

    python -m benchmarks.host_path --out host_path.json
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from levers.kernels import cublaslt, cublaslt_ops
from levers.kernels import cublaslt_products as products
from levers.kernels.cublaslt import KINDS, CublasLt, Devices
from levers.kernels.cublaslt_abi import SIGNATURES, SUCCESS, Epilogue, Library, Operation
from levers.kernels.cublaslt_plan import WORKSPACE_BYTES, Plan, Problem

CALLS, TURNS = 50, 500
"""A turn is 0.5 to 5 ms, shorter than a time slice that is taken away."""

HOT = ("cublasLtMatmul", "cublasLtMatmulDescSetAttribute")
"""The library's functions that each call uses."""

ROWS, CHANNELS, WIDTH = 64, 32, 128
STREAM = 0
BF16 = torch.bfloat16

Product = Callable[[], object]


class IdleLibrary:
    """In place of cuBLASLt: one proposal, and calls that do nothing.

    The two functions of the hot path are the C library's ``ffs``, which is given a null handle and
    returns 0: a success. Their arguments are converted as those of the real ones.
    """

    def __init__(self) -> None:
        c = ctypes.CDLL(None)
        self.functions: dict[str, Any] = {name: _Succeeds() for name in SIGNATURES}
        self.functions["cublasLtMatmulAlgoGetHeuristic"] = _Proposes()
        for name in HOT:
            self.functions[name] = c["ffs"]

    def __getattr__(self, name: str) -> Any:
        return self.functions.get(name) or _Succeeds()


class _Succeeds:
    def __call__(self, *_: Any) -> int:
        return SUCCESS


class _Proposes:
    def __call__(self, *arguments: Any) -> int:
        arguments[-1]._obj.value = 1
        return SUCCESS


@contextlib.contextmanager
def without_device() -> Iterator[CublasLt]:
    """The products on CPU tensors, by an idle library."""
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (cublaslt, "loaded_library", lambda: Library(IdleLibrary())),
            (cublaslt, "device_us", _called),
            (cublaslt, "raw_stream", _gives(STREAM)),
            (torch.cuda, "get_device_name", _gives("none")),
            (torch.cuda, "current_device", _gives(0)),
            (torch.cuda, "_exchange_device", _gives(0)),
            (torch.cuda, "_maybe_exchange_device", _gives(0)),
            (torch.cuda, "is_current_stream_capturing", _gives(False)),
            (CublasLt, "_workspace", _gives(torch.zeros(1))),
            (products, "on_library", _gives(True)),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        devices = Devices(lambda _: CublasLt(0))
        stack.enter_context(mock.patch.object(products, "DEVICES", devices))
        yield devices.at(torch.zeros(1).get_device())


def _gives(value: object) -> Callable[..., object]:
    return lambda *_: value


def _called(call: Product) -> float:
    call()
    return 1e6


@dataclass(frozen=True, slots=True)
class OldOperands:
    """As the tensors of a call were."""

    a: Tensor
    b: Tensor
    out: Tensor
    bias: Tensor | None = None
    aux: Tensor | None = None


class Before:
    """The calls as they were."""

    def __init__(self, lt: CublasLt) -> None:
        self.library, self.handle = lt.library, lt.handle
        self._plans: OrderedDict[Problem, tuple[Plan, Any]] = OrderedDict()
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        self._lock, self._workspace = threading.RLock(), torch.zeros(1)
        self._algorithm = cublaslt.Algorithm()

    def run(self, problem: Problem, operands: OldOperands) -> None:
        with self._lock, torch.cuda.device(0):
            plan = self._plan(problem)
            for tensor, attribute in (
                (operands.bias, Operation.BIAS_POINTER), (operands.aux, Operation.AUX_POINTER),
            ):  # fmt: skip
                if tensor is not None:
                    self.library.put(
                        "MatmulDescSetAttribute", plan.operation, attribute, tensor.data_ptr()
                    )
            stream = SimpleNamespace(cuda_stream=STREAM).cuda_stream
            out = operands.out.data_ptr()
            self.library.call(
                "Matmul", plan.problem, self.handle, plan.operation, ctypes.byref(self._one),
                operands.a.data_ptr(), plan.a, operands.b.data_ptr(), plan.b,
                ctypes.byref(self._zero), out, plan.d, out, plan.d, ctypes.byref(self._algorithm),
                self._workspace.data_ptr(), WORKSPACE_BYTES, stream,
            )  # fmt: skip

    def _plan(self, problem: Problem) -> Plan:
        found = self._plans.get(problem)
        if found is None:
            found = self._plans[problem] = (Plan(self.library, problem), None)
        self._plans.move_to_end(problem)
        return found[0]

    def linear(
        self, x_NC: Tensor, weight_FC: Tensor, bias: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        _on_library(x_NC, *weight_FC.shape)
        x, weight = cublaslt.operand(x_NC), cublaslt.operand(weight_FC)
        out = x.new_empty((len(x), len(weight)), dtype=dtype)
        epilogue = Epilogue.DEFAULT if bias is None else Epilogue.BIAS
        bias = None if bias is None else cublaslt.operand(bias.to(dtype))
        (rows, inputs), outputs = x.shape, weight.shape[0]
        kinds = KINDS[x.dtype], KINDS[dtype]
        problem = Problem(outputs, rows, inputs, True, False, *kinds, epilogue, "n")
        self.run(problem, OldOperands(weight, x, out, bias))
        return out

    def linear_gelu(
        self, x_NC: Tensor, weight_FC: Tensor, bias_F: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        _on_library(x_NC, *weight_FC.shape)
        x, weight = cublaslt.operand(x_NC), cublaslt.operand(weight_FC)
        bias = cublaslt.operand(bias_F.to(dtype))
        out, h = (x.new_empty((len(x), len(weight)), dtype=dtype) for _ in "oh")
        (rows, inputs), outputs = x.shape, weight.shape[0]
        kinds = KINDS[x.dtype], KINDS[dtype]
        epilogue = Epilogue.GELU_AUX_BIAS
        problem = Problem(outputs, rows, inputs, True, False, *kinds, epilogue, "n")
        self.run(problem, OldOperands(weight, x, out, bias, h))
        return out, h

    def weight_grad(self, grad_NF: Tensor, x_NC: Tensor, dtype: torch.dtype) -> Tensor:
        _on_library(grad_NF, grad_NF.shape[1], x_NC.shape[1])
        grad, x = cublaslt.operand(grad_NF), cublaslt.operand(x_NC)
        out = grad.new_empty((grad.shape[1], x.shape[1]), dtype=dtype)
        (rows, outputs), inputs = grad.shape, x.shape[1]
        kinds = KINDS[grad.dtype], KINDS[dtype]
        problem = Problem(inputs, outputs, rows, False, True, *kinds, Epilogue.DEFAULT, "k")
        self.run(problem, OldOperands(x, grad, out))
        return out


def _on_library(rows: Tensor, *sides: int) -> bool:
    fits = all(side % products.SIDE_STEP == 0 for side in sides)
    return rows.device.type == "cpu" and rows.numel() > 0 and fits


SCHEMAS = {
    "linear": "(Tensor x, Tensor weight, Tensor? bias, ScalarType dtype) -> Tensor",
    "linear_gelu": "(Tensor x, Tensor weight, Tensor bias, ScalarType dtype) -> (Tensor, Tensor)",
    "weight_grad": "(Tensor grad, Tensor x, ScalarType dtype) -> Tensor",
}


@contextlib.contextmanager
def operators(before: Before) -> Iterator[dict[str, Any]]:
    """The products as they were, registered as they were, under a name of their own."""
    library: Any = torch.library.Library("levergate_before", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name, schema in SCHEMAS.items():
        library.define(f"{name}{schema}")
        library.impl(name, getattr(before, name), "CompositeExplicitAutograd")
    try:
        yield {name: getattr(torch.ops.levergate_before, name).default for name in SCHEMAS}
    finally:
        library._destroy()


def arguments() -> dict[str, tuple[Any, ...]]:
    """What each product is given; addresses are aligned, as those on a device are."""
    x, weight, grad = (_aligned(*s) for s in ((ROWS, CHANNELS), (WIDTH, CHANNELS), (ROWS, WIDTH)))
    bias = _aligned(WIDTH)
    return {
        "linear": (x, weight, bias, BF16),
        "linear_gelu": (x, weight, bias, BF16),
        "weight_grad": (grad, x, torch.float32),
    }


def _aligned(*shape: int) -> Tensor:
    step = cublaslt.ALIGNMENT_BYTES // BF16.itemsize
    raw = torch.zeros(torch.Size(shape).numel() + step, dtype=BF16)
    shift = -raw.data_ptr() % cublaslt.ALIGNMENT_BYTES // BF16.itemsize
    return raw[shift : shift + torch.Size(shape).numel()].view(shape)


def microseconds(forms: Mapping[str, Product], turns: int, calls: int = CALLS) -> dict[str, float]:
    """The fastest turn of each form, in microseconds a call."""
    spent: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(turns):
        for name, call in forms.items():
            start = time.perf_counter()
            for _ in range(calls):
                call()
            spent[name].append((time.perf_counter() - start) / calls * 1e6)
    return {name: min(times) for name, times in spent.items()}


def measured(turns: int, calls: int = CALLS) -> list[dict[str, Any]]:
    """A row for each product: before, now by its operator, now; and how many times as fast."""
    rows = []
    with without_device() as lt, operators(Before(lt)) as before:
        for name, given in arguments().items():
            calls_of = {
                "before": before[name],
                "operator": getattr(torch.ops.levergate, name).default,
                "now": getattr(cublaslt_ops, name),
            }
            forms = {form: functools.partial(call, *given) for form, call in calls_of.items()}
            found = microseconds(forms, turns, calls)
            rows.append({"product": name, **found, "ratio": found["before"] / found["now"]})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = measured(asked.turns)
    print(f"{'product':12} {'before us':>10} {'operator us':>12} {'now us':>8} {'ratio':>6}")
    for row in rows:
        print(
            f"{row['product']:12} {row['before']:10.1f} {row['operator']:12.1f} {row['now']:8.1f}"
            f" {row['ratio']:6.2f}"
        )
    if asked.out:
        asked.out.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
