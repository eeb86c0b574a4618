"""Types of the benchmarks' arguments: what is typed wrong is answered in a line, with its cure."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from levers.errors import LevergateError


def assignment(text: str) -> tuple[str, str]:
    """A name and its value, ``prompt_tokens=512``.

    Raises:
        argparse.ArgumentTypeError: it has no name or no ``=``.
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no name and value, such as prompt_tokens=512"
        )
    return name, value


def natural(text: str) -> int:
    """A number of 1 or more.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 1 or more")
    return int(text)


def answered(name: str, main: Callable[[], Any]) -> Any:
    """What ``main`` returns; what it cannot do with what was typed ends in a line and code 2."""
    try:
        return main()
    except LevergateError as error:
        argparse.ArgumentParser(prog=name).exit(2, f"{name}: {error}\n")
