"""What each backend of the decode attention needs, told without importing it: torch-free."""

from __future__ import annotations

import importlib.util
from pathlib import Path

FA2_PAGE = 256
"""Slots of a page in flash-attention 2: a multiple of this (``mha_fwd_kvcache``)."""

PACKAGES: dict[str, tuple[str, str, str]] = {
    "triton": ("triton", "", "triton"),
    "fa2": ("flash_attn", "flash_attn_interface.py", "flash-attn 2"),
    "fa3": ("flash_attn_interface", "", "FlashAttention-3 (flash_attn_interface)"),
}
"""Top-level package, a file in it ("" for the package alone), and what to install."""


def missing_package(backend: str) -> tuple[str, ...]:
    """The reason if the package of a backend is not installed; ``torch`` needs none."""
    need = PACKAGES.get(backend)
    if need is None or _installed(need[0], need[1]):
        return ()
    return (f"{backend} needs {need[2]}, which is not installed",)


def _installed(package: str, file: str) -> bool:
    spec = importlib.util.find_spec(package)
    if spec is None:
        return False
    folders = spec.submodule_search_locations or ()
    return not file or any(Path(folder, file).is_file() for folder in folders)
