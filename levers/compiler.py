"""What ``torch.compile`` needs beside PyTorch, found without importing torch."""

from __future__ import annotations

import importlib.util
import os
import shutil


def missing_compiler(device_type: str) -> tuple[str, ...]:
    """Why no code can be generated for this kind of device; empty where it can.

    PyTorch's code generator writes Triton for CUDA and C++ for a CPU.
    """
    if device_type == "cuda":
        found = importlib.util.find_spec("triton") is not None
        return () if found else ("torch.compile on CUDA needs triton, which is not installed",)
    names = (os.environ.get("CXX", ""), "g++", "clang++")
    if any(name and shutil.which(name) for name in names):
        return ()
    return ("torch.compile on a CPU needs a C++ compiler (g++ or clang++), none was found",)
