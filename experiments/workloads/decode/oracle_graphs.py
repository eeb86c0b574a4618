"""Whether a server replays captured graphs: by its command, its log, or its own answer.

A server that captures nothing is slower than its users run it. What none of the three says is not
known, and is recorded so.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

CAPTURED, NONE, NOT_SAID = "captured", "none", "not said"

EAGER_OPTIONS = ("--enforce-eager", "--disable-cuda-graph", "--disable-cuda-graphs")
"""Options of vLLM, SGLang and TGI that switch off captured graphs."""
EAGER_LEVELS = ("-O0", "-O.level=0", "-O.mode=0")
"""vLLM's optimisation level without compilation and graphs."""
EAGER_CONFIG = re.compile(r"""cudagraph[-_]mode["']?[=:\s]+["']?NONE\b""", re.IGNORECASE)
"""vLLM's compilation config in a command."""
FALSE_WORDS = ("false", "0", "no", "off")

EAGER_LOG = re.compile(
    r"""(?<!['"])\benforce_eager=True|\bdisable_cuda_graph=True|Cudagraph is disabled"""
    r"""|cudagraph_mode['"]?[=:\s]+<?CUDAGraphMode\.NONE\b"""
)
"""How the logs of vLLM and SGLang say so. In quotes it is the advice that vLLM prints when it does
capture ("to run the model in eager mode, set 'enforce_eager=True'")."""
CAPTURED_LOG = re.compile(r"Graph capturing finished|Capture cuda graph end")
"""What both print when they have captured."""

INFO_PATHS = ("/get_server_info", "/server_info")
"""Where SGLang tells its own options."""
INFO_NAMES = ("disable_cuda_graph", "enforce_eager")


@dataclass(frozen=True, slots=True)
class Graphs:
    """Whether a server replays captured graphs, and what says so."""

    state: str = NOT_SAID
    said: str = ""

    def __str__(self) -> str:
        return f"{self.state} ({self.said})" if self.said else self.state


def by_command(command: str) -> Graphs:
    """What the options of a command say."""
    words = shlex.split(command)
    found = [word for word in words if _is_eager(word)]
    found += [" ".join(two) for two in itertools.pairwise(words) if two == ("-O", "0")]
    found += [match[0] for match in [EAGER_CONFIG.search(command)] if match]
    return Graphs(NONE, " ".join(found)) if found else Graphs()


def _is_eager(word: str) -> bool:
    name, _, value = word.partition("=")
    named = name.replace("_", "-") in EAGER_OPTIONS
    return (named and value.lower() not in FALSE_WORDS) or word in EAGER_LEVELS


def by_log(text: str) -> Graphs:
    """What a log says; that graphs are off counts before that some were captured."""
    for state, pattern in ((NONE, EAGER_LOG), (CAPTURED, CAPTURED_LOG)):
        if found := pattern.search(text):
            return Graphs(state, found[0])
    return Graphs()


def by_info(body: bytes) -> Graphs:
    """What a server answers when it is asked for its options; empty and foreign bodies say nothing.

    Its options may lie one level deeper than the answer.
    """
    try:
        answer: Any = json.loads(body or b"null")
    except ValueError:
        return Graphs()
    for options in _options(answer):
        for name in INFO_NAMES:
            if isinstance(options.get(name), bool):
                said = f"{name}={options[name]}"
                return Graphs(NONE if options[name] else CAPTURED, said)
    return Graphs()


def _options(answer: Any) -> Iterable[Mapping[str, Any]]:
    if isinstance(answer, dict):
        yield answer
        yield from (inner for inner in answer.values() if isinstance(inner, dict))


def first_known(found: Iterable[Graphs]) -> Graphs:
    """The first that says something: that graphs are off, then that they are captured."""
    known = [one for one in found if one.state != NOT_SAID]
    off = [one for one in known if one.state == NONE]
    return next(iter([*off, *known]), Graphs())
