"""The C interface of cuBLASLt, as far as it is used here: constants, structures, checked calls.

The library is the one that torch has loaded: its path is read from the process's own map, and the
dynamic linker returns the object that is already there. Numbers are those of ``cublasLt.h`` and
``library_types.h`` of CUDA 13 (the same in CUDA 12); the sizes of attributes were checked with
cuBLASLt 13.1, which refuses a wrong one with ``CUBLAS_STATUS_INVALID_VALUE``.

Source: NVIDIA, cuBLAS library documentation, chapter "Using the cuBLASLt API".
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

from levers.errors import BadParameter

SUCCESS = 0
"""``CUBLAS_STATUS_SUCCESS``."""

STATUS = {
    1: "CUBLAS_STATUS_NOT_INITIALIZED",
    3: "CUBLAS_STATUS_ALLOC_FAILED",
    7: "CUBLAS_STATUS_INVALID_VALUE",
    8: "CUBLAS_STATUS_ARCH_MISMATCH",
    11: "CUBLAS_STATUS_MAPPING_ERROR",
    13: "CUBLAS_STATUS_EXECUTION_FAILED",
    14: "CUBLAS_STATUS_INTERNAL_ERROR",
    15: "CUBLAS_STATUS_NOT_SUPPORTED",
    16: "CUBLAS_STATUS_LICENSE_ERROR",
}
"""``cublasStatus_t``."""

COMPUTE_32F = 68
"""``CUBLAS_COMPUTE_32F`` of ``cublasComputeType_t``: fp32 sums."""

OP_N, OP_T = 0, 1
"""``CUBLAS_OP_N``, ``CUBLAS_OP_T`` of ``cublasOperation_t``."""

FP32_SUMS = 2
"""``CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE``: parts of a split sum are kept and added in fp32."""


class Kind(IntEnum):
    """``cudaDataType_t``."""

    FP32 = 0
    FP16 = 2
    BF16 = 14


class Epilogue(IntEnum):
    """``cublasLtEpilogue_t``."""

    DEFAULT = 1
    BIAS = 4
    GELU_AUX_BIAS = 32 | 128 | 4
    DGELU = 64 | 128
    DGELU_BGRAD = 64 | 128 | 16
    BGRADB = 512

    @property
    def has_aux(self) -> bool:
        """Whether it reads or writes the activation's input."""
        return bool(self & 128)


class Attribute(Enum):
    """An attribute of a descriptor: its number, and what it is stored as."""

    def __init__(self, number: int, stored: type[Any]) -> None:
        self.number, self.stored = number, stored


class Operation(Attribute):
    """``cublasLtMatmulDescAttributes_t``."""

    TRANSA = (3, ctypes.c_int32)
    TRANSB = (4, ctypes.c_int32)
    EPILOGUE = (7, ctypes.c_uint32)
    BIAS_POINTER = (8, ctypes.c_void_p)
    AUX_POINTER = (11, ctypes.c_void_p)
    AUX_LD = (12, ctypes.c_int64)


class Preference(Attribute):
    """``cublasLtMatmulPreferenceAttributes_t``."""

    MAX_WORKSPACE_BYTES = (1, ctypes.c_uint64)
    REDUCTION_SCHEME_MASK = (3, ctypes.c_uint32)


class Choice(Attribute):
    """``cublasLtMatmulAlgoConfigAttributes_t``."""

    ID = (0, ctypes.c_int32)
    TILE = (1, ctypes.c_uint32)
    SPLIT_K = (2, ctypes.c_int32)
    SWIZZLE = (4, ctypes.c_uint32)
    CUSTOM = (5, ctypes.c_uint32)
    STAGES = (6, ctypes.c_uint32)
    CLUSTER = (8, ctypes.c_uint16)


class Algorithm(ctypes.Structure):
    """``cublasLtMatmulAlgo_t``."""

    _fields_ = (("data", ctypes.c_uint64 * 8),)


class Heuristic(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``: 96 bytes."""

    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class Refused(BadParameter):
    """The library would not do what it was asked; ``status`` is its name for why."""

    def __init__(self, call: str, status: int, what: str) -> None:
        self.status = STATUS.get(status, f"status {status}")
        super().__init__(
            f"{call} of {what} returned {self.status}",
            cure="switch the lever off, or use a device, shapes and dtypes that cuBLASLt takes",
        )


_POINTER, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_ATTRIBUTE = (_POINTER, _INT, _POINTER, _SIZE)

SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (_POINTER,),
    "cublasLtMatmulDescCreate": (_POINTER, _INT, _INT),
    "cublasLtMatmulDescDestroy": (_POINTER,),
    "cublasLtMatmulDescSetAttribute": _ATTRIBUTE,
    "cublasLtMatrixLayoutCreate": (
        _POINTER, _INT, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64,
    ),
    "cublasLtMatrixLayoutDestroy": (_POINTER,),
    "cublasLtMatmulPreferenceCreate": (_POINTER,),
    "cublasLtMatmulPreferenceDestroy": (_POINTER,),
    "cublasLtMatmulPreferenceSetAttribute": _ATTRIBUTE,
    "cublasLtMatmulAlgoGetHeuristic": (*[_POINTER] * 7, _INT, _POINTER, _POINTER),
    "cublasLtMatmulAlgoCheck": (*[_POINTER] * 8,),
    "cublasLtMatmulAlgoConfigGetAttribute": (*_ATTRIBUTE, _POINTER),
    "cublasLtMatmul": (*[_POINTER] * 14, _SIZE, _POINTER),
}  # fmt: skip
"""The arguments of each function; each returns a ``cublasStatus_t``."""

_MAPPED = re.compile(r"\s(/\S*libcublasLt\.so[.\d]*)$", re.MULTILINE)


def mapped_library(maps: str) -> str | None:
    """The path of cuBLASLt in the text of ``/proc/self/maps``; None where it is not loaded."""
    found = _MAPPED.search(maps)
    return found[1] if found else None


class Library:
    """The loaded library; its functions raise where they fail."""

    def __init__(self, loaded: Any) -> None:
        self._functions: dict[str, Callable[..., int]] = {}
        for name, arguments in SIGNATURES.items():
            function = getattr(loaded, name)
            function.argtypes, function.restype = arguments, _INT
            self._functions[name] = function
        loaded.cublasLtGetVersion.argtypes, loaded.cublasLtGetVersion.restype = (), _SIZE
        self.version = int(loaded.cublasLtGetVersion())

    def function(self, name: str) -> Callable[..., int]:
        """A function that returns its status, by its name less ``cublasLt``."""
        return self._functions[f"cublasLt{name}"]

    def status(self, name: str, *arguments: Any) -> int:
        """Call a function; its status as it is."""
        return self.function(name)(*arguments)

    def call(self, name: str, what: object, *arguments: Any) -> None:
        """Call a function that must succeed; ``what`` is named where it does not.

        Raises:
            Refused: with the status's name.
        """
        status = self.status(name, *arguments)
        if status != SUCCESS:
            raise Refused(f"cublasLt{name}", status, str(what))

    def put(self, name: str, target: Any, attribute: Attribute, value: int) -> None:
        """Set one attribute by ``name`` (``MatmulDescSetAttribute`` and the like).

        Raises:
            Refused: the library does not take it.
        """
        held = attribute.stored(value)
        size = ctypes.sizeof(held)
        self.call(name, attribute.name, target, attribute.number, ctypes.byref(held), size)


def loaded_library() -> Library:
    """The cuBLASLt of this process.

    Raises:
        BadParameter: none is loaded, as where torch was built without CUDA.
    """
    path = mapped_library(Path("/proc/self/maps").read_text())
    if path is None:
        raise BadParameter(
            "no libcublasLt is loaded in this process",
            cure="use a torch with CUDA, and touch the device first",
        )
    return Library(ctypes.CDLL(path))
