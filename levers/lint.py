"""What makes an object acceptable as a lever: checked once, when it is taken into the catalog."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from levers.base import OFF, Lever, Settings
from levers.handle import CURE, RESERVED
from levers.policy import GatingPolicy

LARGEST_TOLERANCE = 0.1
"""Relative L2 error against fp64 above which a declared tolerance says nothing any more.

fp8 (E4M3, 3 mantissa bits) rounds with a relative error of at most 2**-4 = 0.0625; what is further
off than any rounding to a format in use is not a rounding.
"""

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_ENV = re.compile(r"LEVER_[A-Z0-9_]+")
_HOOKS = ("policy", "unmet", "environment", "enable", "disable", "witness", "op_cases")


@dataclass(frozen=True, slots=True)
class SampleFacts:
    """A device and a workload to ask a lever's policy about, before any run."""

    device_type: str
    workload: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    sites: tuple[str, ...] = ()


def complaints(lever: object) -> tuple[str, ...]:
    """Why the object is not acceptable as a lever; empty means that it is."""
    if not isinstance(lever, Lever):
        missing = sorted(name for name in _members() if not hasattr(lever, name))
        return (f"{type(lever).__name__} is no lever: it lacks {', '.join(missing)}",)
    return tuple(_declaration(lever)) or tuple(_policies(lever))


def _members() -> tuple[str, ...]:
    return (*Lever.__annotations__, *_HOOKS)


def _declaration(lever: Any) -> Iterator[str]:
    if not isinstance(lever.name, str) or not _NAME.fullmatch(lever.name):
        yield f"name {lever.name!r} is not lower case letters, digits and underscores"
    if not isinstance(lever.summary, str) or not lever.summary or "\n" in lever.summary:
        yield "summary is not one line of text"
    if not isinstance(lever.settings, Settings):
        yield f"settings is a {type(lever.settings).__name__}, not levers.base.Settings"
    elif OFF not in lever.settings.names:
        yield "settings lack 'off'"
    if not isinstance(lever.env, str) or not _ENV.fullmatch(lever.env):
        yield f"kill switch {lever.env!r} is not named LEVER_*"
    if not lever.touches:
        yield "it touches no site, so it can change nothing"
    if not lever.workloads:
        yield "it names no workload"
    for attribute in ("touches", "supersedes", "composes_with", "workloads"):
        if not isinstance(getattr(lever, attribute), tuple):
            yield f"{attribute} is not a tuple"
    for hook in _HOOKS:
        if not callable(getattr(lever, hook)):
            yield f"{hook} is not callable"
    yield from _writing(sys.modules[type(lever).__module__])
    if not (sys.modules[type(lever).__module__].__doc__ or "").strip():
        yield "its module has no docstring: what changes, the mechanism, where it does not help"


def _writing(module: ModuleType) -> Iterator[str]:
    """Where a lever's file would write what was seen at a site, by name or by a word for it."""
    path = Path(getattr(module, "__file__", None) or "")
    text = path.read_bytes() if path.is_file() else b""
    if not any(name.encode() in text for name in RESERVED):
        return
    for node in ast.walk(ast.parse(text)):
        name = node.attr if isinstance(node, ast.Attribute) else ""
        word = node.value if isinstance(node, ast.Constant) else ""
        for found in RESERVED:
            if found in (name, word):
                yield (
                    f"line {getattr(node, 'lineno', 0)} of {path.name} has {found!r}, which is the "
                    f"workload's: a lever does not write what ran; {CURE}"
                )


def _policies(lever: Lever) -> Iterator[str]:
    """The policy of each kind of device must build; a tolerance must be reasoned and small."""
    for workload in lever.workloads:
        for device_type in ("cpu", "cuda"):
            facts = SampleFacts(device_type, workload, sites=lever.touches)
            for complaint in _policy(lever.policy(facts)):
                yield f"policy of {workload} on {device_type}: {complaint}"


def _policy(policy: object) -> Iterator[str]:
    if not isinstance(policy, GatingPolicy):
        yield f"is a {type(policy).__name__}, not a GatingPolicy"
        return
    tolerance = policy.tolerance
    if tolerance is not None and not tolerance.reason.strip():
        yield "the tolerance gives no reason"
    for error in () if tolerance is None else (tolerance.relative_error, tolerance.gradient_error):
        if error is not None and not 0 < error <= LARGEST_TOLERANCE:
            yield f"a tolerance of {error:g} accepts anything; at most {LARGEST_TOLERANCE:g}"
    for name, value in _margins(policy):
        if not 0 < value < 1:
            yield f"{name} = {value:g} is no log ratio between 0 and 1"


def _margins(policy: GatingPolicy) -> Iterator[tuple[str, float]]:
    yield "smallest_gain", policy.smallest_gain
    yield "primary_margin", policy.primary_margin
    for guard in policy.guards:
        yield f"margin of {guard.axis}", guard.margin
        if guard.ceiling is not None and guard.ceiling > 1:
            yield f"ceiling of {guard.axis}", guard.ceiling
