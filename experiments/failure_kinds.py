"""Which kind of failure an exception of an arm is (torch-free)."""

from __future__ import annotations

from experiments.records import FailureKind
from levers.errors import BadParameter, BadSetting, LeverConflict, NotRestored

OUT_OF_MEMORY_TEXTS = ("out of memory", "can't allocate memory", "Cannot allocate memory")
"""How torch's CPU allocator and CUDA name it in a plain ``RuntimeError``."""


def kind_of(error: BaseException) -> FailureKind:
    """Which kind of failure an exception is; ``sys.exit`` inside an arm is a crash."""
    text = str(error)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "out-of-memory"
    if isinstance(error, (RuntimeError, OSError)) and any(s in text for s in OUT_OF_MEMORY_TEXTS):
        return "out-of-memory"
    if isinstance(error, NotRestored):
        return "not-restored"
    if isinstance(error, FloatingPointError):
        return "not-finite"
    if isinstance(error, (LeverConflict, BadParameter, BadSetting)):
        return "unmet"
    return "crashed"
