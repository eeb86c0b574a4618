"""Algorithms that were chosen before, on disk, so that the processes of one arm run the same.

Two processes that measure may choose differently where two algorithms are near, and their results
then differ in the last bit. The library's description of an algorithm is 64 bytes that may be kept
and used again with the same version of it. They lie beside the arm's Triton kernels: where
``TRITON_CACHE_DIR`` is set, as it is for each arm of a run; without it nothing is kept.

The first process to choose decides: a file is linked into place whole, and who comes second takes
what is there.

Source: NVIDIA, ``cublasLt.h`` on ``cublasLtMatmulAlgo_t`` (serialised and restored with the same
version).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from levers.errors import StoreError
from levers.kernels.cublaslt_abi import Algorithm

VARIABLE = "TRITON_CACHE_DIR"
FOLDER = "cublaslt"
SIZE = ctypes.sizeof(Algorithm)


def folder_of(environment: Mapping[str, str]) -> Path | None:
    """Where choices are kept; None where no cache was set apart."""
    cache = environment.get(VARIABLE)
    return Path(cache) / FOLDER if cache else None


class Choices:
    """The choices of one kind of device and version of the library.

    Args:
        folder: where they lie, or None to keep none.
        stack: device and version; another stack has other choices.
    """

    def __init__(self, folder: Path | None, stack: str) -> None:
        self.folder, self.stack = folder, stack

    def find(self, problem: str) -> Algorithm | None:
        """What was chosen for a problem; None where nothing was.

        Raises:
            StoreError: the file is not one that :meth:`keep` wrote.
        """
        if self.folder is None:
            return None
        path = self._path(self.folder, problem)
        try:
            held = path.read_bytes()
        except FileNotFoundError:
            return None
        if len(held) != SIZE:
            raise StoreError(f"{path} has {len(held)} bytes, not {SIZE}", cure="remove it")
        return Algorithm.from_buffer_copy(held)

    def keep(self, problem: str, algorithm: Algorithm) -> Algorithm:
        """Keep a choice, if none is kept yet; the one that counts from now on.

        Raises:
            StoreError: the folder cannot be written.
        """
        if self.folder is None:
            return algorithm
        path = self._path(self.folder, problem)
        try:
            _link(path, bytes(algorithm))
        except OSError as error:
            raise StoreError(
                f"cannot write {path}: {error.strerror}",
                cure=f"free space, or make the folder that {VARIABLE} names writable",
            ) from error
        return self.find(problem) or algorithm

    def _path(self, folder: Path, problem: str) -> Path:
        return folder / hashlib.sha256(f"{self.stack}\n{problem}".encode()).hexdigest()[:32]


def _link(path: Path, held: bytes) -> None:
    """Put a whole file in place unless there is one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(held)
        try:
            os.link(name, path)
        except FileExistsError:
            return
    finally:
        Path(name).unlink()
