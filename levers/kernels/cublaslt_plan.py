"""One product of cuBLASLt: what it is, where its operands lie, and the library's descriptors of it.

Everything here is column-major, as the library is: ``D [m, n] = op(A) op(B)``. A row-major ``[r,
c]`` tensor is the column-major ``[c, r]`` matrix with leading dimension c, so a row-major product
``left @ right`` is the column-major one of ``right`` and ``left``.
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from torch import Tensor

from levers.kernels.cublaslt_abi import (
    COMPUTE_32F,
    FP32_SUMS,
    OP_N,
    OP_T,
    SUCCESS,
    Algorithm,
    Choice,
    Epilogue,
    Heuristic,
    Kind,
    Library,
    Operation,
    Preference,
    Refused,
)

WORKSPACE_BYTES = 32 << 20
"""What PyTorch gives cuBLASLt on this architecture, and NVIDIA's documentation recommends."""

ROW_STEP = 2048
"""Problems with the same number of these steps of packed rows share an algorithm: 16 row tiles."""

NOT_SUPPORTED = 15
"""``CUBLAS_STATUS_NOT_SUPPORTED``: what no proposal at all means."""


def _rounded(rows: int) -> int:
    return -(-rows // ROW_STEP) * ROW_STEP


@dataclass(frozen=True, slots=True)
class Problem:
    """One product, column-major: ``D [m, n] = op(A) op(B)`` over k, all matrices dense.

    ``rows`` names the extent that the packed rows give (``n`` or ``k``).
    """

    m: int
    n: int
    k: int
    transpose_a: bool
    transpose_b: bool
    operands: Kind
    result: Kind
    epilogue: Epilogue
    rows: Literal["n", "k"]

    @property
    def shared(self) -> Problem:
        """The problem whose choice it shares: its packed rows rounded up."""
        if self.rows == "n":
            return replace(self, n=_rounded(self.n))
        return replace(self, k=_rounded(self.k))

    @property
    def flop(self) -> int:
        """Of the product alone."""
        return 2 * self.m * self.n * self.k

    def __str__(self) -> str:
        turns = "".join("T" if turn else "N" for turn in (self.transpose_a, self.transpose_b))
        kinds = f"{self.operands.name.lower()} to {self.result.name.lower()}"
        return f"{self.m}x{self.n}x{self.k} {turns} {kinds} {self.epilogue.name.lower()}"


class Operands(NamedTuple):
    """The tensors of one call; ``bias`` and ``aux`` as the epilogue wants them."""

    a: Tensor
    b: Tensor
    out: Tensor
    bias: Tensor | None = None
    aux: Tensor | None = None


_ONE, _ZERO = ctypes.c_float(1.0), ctypes.c_float(0.0)
ALPHA, BETA = ctypes.byref(_ONE), ctypes.byref(_ZERO)
"""The product's factor, and that of what the result held before."""


class Address:
    """An attribute of a descriptor that is an address and changes from call to call."""

    def __init__(self, library: Library, operation: ctypes.c_void_p, attribute: Operation) -> None:
        self._set = library.function("MatmulDescSetAttribute")
        self._held, self._name = ctypes.c_void_p(), attribute.name
        self._arguments = (
            operation, attribute.number, ctypes.byref(self._held), ctypes.sizeof(self._held),
        )  # fmt: skip

    def put(self, address: int) -> None:
        """Have the descriptor say it.

        Raises:
            Refused: the library does not take it.
        """
        self._held.value = address
        status = self._set(*self._arguments)
        if status != SUCCESS:
            raise Refused("cublasLtMatmulDescSetAttribute", status, self._name)


class Plan:
    """The descriptors of one problem, and all of a call that stays the same from one to the next.

    Bias and activation input are left at the library's default type, which is the result's.

    Attributes:
        chosen: the algorithm that its calls run, as an argument; None until it is known.
    """

    def __init__(self, library: Library, problem: Problem) -> None:
        self.library, self.problem = library, problem
        self.chosen: Any = None
        self._matmul = library.function("Matmul")
        p = problem
        self.operation = self._create("MatmulDesc", COMPUTE_32F, int(Kind.FP32))
        self._put(Operation.TRANSA, OP_T if p.transpose_a else OP_N)
        self._put(Operation.TRANSB, OP_T if p.transpose_b else OP_N)
        self._put(Operation.EPILOGUE, p.epilogue)
        if p.epilogue.has_aux:
            self._put(Operation.AUX_LD, p.m)
        a = (p.k, p.m) if p.transpose_a else (p.m, p.k)
        b = (p.n, p.k) if p.transpose_b else (p.k, p.n)
        self.a, self.b = (self._layout(p.operands, *shape) for shape in (a, b))
        self.d = self._layout(p.result, p.m, p.n)
        self._bias = Address(library, self.operation, Operation.BIAS_POINTER)
        self._aux = Address(library, self.operation, Operation.AUX_POINTER)

    def _create(self, what: str, *arguments: int) -> ctypes.c_void_p:
        held = ctypes.c_void_p()
        self.library.call(f"{what}Create", self.problem, ctypes.byref(held), *arguments)
        weakref.finalize(self, self.library.status, f"{what}Destroy", held).atexit = False
        return held

    def _layout(self, kind: Kind, rows: int, columns: int) -> ctypes.c_void_p:
        return self._create("MatrixLayout", kind, rows, columns, rows)

    def _put(self, attribute: Operation, value: int) -> None:
        self.library.put("MatmulDescSetAttribute", self.operation, attribute, value)

    def point(self, operands: Operands) -> None:
        """Say where bias and activation input of the next call lie."""
        bias, aux = operands.bias, operands.aux
        if bias is not None:
            self._bias.put(bias.data_ptr())
        if aux is not None:
            self._aux.put(aux.data_ptr())

    def launch(
        self,
        handle: ctypes.c_void_p,
        operands: Operands,
        algorithm: Any,
        workspace: Tensor,
        stream: int,
    ) -> None:
        """Run it on a stream, its pointers being set; the algorithm is given by reference.

        Raises:
            Refused: the library fails to launch it.
        """
        out = operands.out.data_ptr()
        status = self._matmul(
            handle, self.operation,
            ALPHA, operands.a.data_ptr(), self.a, operands.b.data_ptr(), self.b,
            BETA, out, self.d, out, self.d,
            algorithm, workspace.data_ptr(), WORKSPACE_BYTES, stream,
        )  # fmt: skip
        if status != SUCCESS:
            raise Refused("cublasLtMatmul", status, str(self.problem))

    def candidates(self, handle: ctypes.c_void_p, count: int) -> list[Heuristic]:
        """The heuristic's proposals, its best first.

        Raises:
            Refused: it has none, so that this problem is not supported.
        """
        preference = self._create("MatmulPreference")
        for attribute, value in (
            (Preference.MAX_WORKSPACE_BYTES, WORKSPACE_BYTES),
            (Preference.REDUCTION_SCHEME_MASK, FP32_SUMS),
        ):
            self.library.put("MatmulPreferenceSetAttribute", preference, attribute, value)
        found, number = (Heuristic * count)(), ctypes.c_int()
        self.library.call(
            "MatmulAlgoGetHeuristic", self.problem, handle, self.operation,
            self.a, self.b, self.d, self.d, preference, count, found, ctypes.byref(number),
        )  # fmt: skip
        usable = [one for one in found[: number.value] if one.state == SUCCESS]
        if not usable:
            raise Refused("cublasLtMatmulAlgoGetHeuristic", NOT_SUPPORTED, str(self.problem))
        return usable

    def takes(self, handle: ctypes.c_void_p, algorithm: Algorithm) -> bool:
        """Whether an algorithm that was chosen for other rows runs these."""
        checked = Heuristic()
        status = self.library.status(
            "MatmulAlgoCheck", handle, self.operation, self.a, self.b, self.d, self.d,
            ctypes.byref(algorithm), ctypes.byref(checked),
        )  # fmt: skip
        return status == SUCCESS and checked.workspace_bytes <= WORKSPACE_BYTES

    def describe(self, algorithm: Algorithm) -> str:
        """An algorithm's configuration in words."""
        values = {}
        for choice in Choice:
            held: Any = choice.stored()
            written = ctypes.c_size_t()
            self.library.call(
                "MatmulAlgoConfigGetAttribute", choice.name, ctypes.byref(algorithm), choice.number,
                ctypes.byref(held), ctypes.sizeof(held), ctypes.byref(written),
            )  # fmt: skip
            values[choice.name.lower()] = int(held.value)
        return " ".join(f"{name}={value}" for name, value in values.items())
