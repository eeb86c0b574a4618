"""The digest of a lever's source: the identity that a verdict and a cached check are bound to."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from levers.base import Lever
from levers.errors import BrokenLever


def source_digest(lever: Lever) -> str:
    """SHA-256 (16 hex digits) over the lever's file and the kernel modules that it names.

    A lever names its kernel modules in an optional attribute ``kernels`` (a tuple of module names).
    They are found without being imported, since they import torch.

    Raises:
        BrokenLever: a file of the lever cannot be found.
    """
    total = hashlib.sha256()
    for name, path in source_files(lever):
        total.update(f"{name}\n".encode())
        total.update(path.read_bytes())
    return total.hexdigest()[:16]


def source_files(lever: Lever) -> tuple[tuple[str, Path], ...]:
    """The modules that make up the lever with their files: its own first, then its kernels.

    Raises:
        BrokenLever: a file of the lever cannot be found.
    """
    return tuple(_files(lever))


def _files(lever: Lever) -> Iterator[tuple[str, Path]]:
    own = type(lever).__module__
    file = getattr(sys.modules[own], "__file__", None)
    if file is None:
        raise BrokenLever(
            f"{lever.name}: its module {own} has no file, so its source has no digest",
            cure="define the lever in a file",
        )
    yield own, Path(file)
    for name in getattr(lever, "kernels", ()):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise BrokenLever(
                f"{lever.name} names the kernel module {name!r}, which does not exist",
                cure="correct its `kernels`",
            )
        yield name, Path(spec.origin)
