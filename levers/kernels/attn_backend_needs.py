"""What each attention backend needs, told without importing it: torch-free.

Asking Python for ``flash_attn.cute`` would import ``flash_attn``, and with it torch; so a package
is looked for by its files.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Need:
    """What one backend needs.

    Attributes:
        files: top-level package, a file in it ("" for the package alone), and what to install.
        least, below: compute capabilities from ``least`` on and below ``below``.
    """

    files: tuple[tuple[str, str, str], ...]
    least: tuple[int, int]
    below: tuple[int, int]


NO_LIMIT = (100, 0)

_FA2 = ("flash_attn", "flash_attn_interface.py", "flash-attn 2")
_FA3 = ("flash_attn_interface", "", "FlashAttention-3 (flash_attn_interface)")
_FA4 = ("flash_attn", "cute/interface.py", "flash-attn-4 (flash_attn.cute)")
_CUTE = ("cutlass", "", "nvidia-cutlass-dsl, which flash-attn-4 is written in")

NEEDS: dict[str, Need] = {
    "fa2": Need((_FA2,), (8, 0), NO_LIMIT),
    "cudnn": Need((), (8, 0), NO_LIMIT),
    "fa3": Need((_FA3, _FA2), (9, 0), (10, 0)),
    "fa4": Need((_FA4, _CUTE), (9, 0), NO_LIMIT),
    "torch-flash": Need((), (8, 0), NO_LIMIT),
}
"""By setting. FA3's kernels exist for sm_90 alone; FA4's backward exists from sm_90 on."""


def missing_packages(setting: str) -> tuple[str, ...]:
    """A reason for each package that the setting needs and that is not installed."""
    return tuple(
        f"{what} is not installed{_why(setting, what)}"
        for package, file, what in NEEDS[setting].files
        if not _installed(package, file)
    )


def _why(setting: str, what: str) -> str:
    """FA3 needs FA2 beside it, which has to be said."""
    if setting == "fa3" and what == _FA2[2]:
        return ", and FA3 as published in wheels has no backward of its own: FA2's would run it"
    return ""


def _installed(package: str, file: str) -> bool:
    spec = importlib.util.find_spec(package)
    if spec is None:
        return False
    folders = spec.submodule_search_locations or ()
    return not file or any(Path(folder, file).is_file() for folder in folders)
