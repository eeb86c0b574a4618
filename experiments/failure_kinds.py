"""Which kind of failure an exception of an arm is (torch-free)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from experiments.records import FailureKind
from levers.errors import (
    BadParameter,
    BadSetting,
    DefectiveLever,
    InputsChanged,
    LeverConflict,
    NotRestored,
)

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
    if isinstance(error, DefectiveLever):
        return "lever-defective"
    if isinstance(error, InputsChanged):
        return "inputs-changed"
    if isinstance(error, FloatingPointError):
        return "not-finite"
    if isinstance(error, (LeverConflict, BadParameter, BadSetting)):
        return "unmet"
    return "crashed"


@contextlib.contextmanager
def levers_own(what: str) -> Iterator[None]:
    """What is raised inside is the lever's own fault, in whichever arm's process it runs.

    Memory that is not there is nobody's statement, and stays what it is.

    Args:
        what: the hook in words, such as ``op_cases of fused_modulate=on``.

    Raises:
        DefectiveLever: something else was raised.
    """
    try:
        yield
    except DefectiveLever:
        raise
    except (Exception, SystemExit) as error:  # a hook is a boundary to foreign code
        if kind_of(error) == "out-of-memory":
            raise
        said = f"{what} raised {type(error).__name__}: {error}"
        raise DefectiveLever(said, cure="correct the lever") from error
