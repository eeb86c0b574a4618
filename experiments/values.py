"""The base of all frozen records: immutable pydantic values, read-only mappings, a digest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, PlainSerializer, ValidationError

V = TypeVar("V")

Scalar: TypeAlias = str | int | float | bool | None

SCHEMA_VERSION = 1
"""Version of every JSON that levergate prints or stores; raised when a meaning changes."""


def _thaw(value: Mapping[str, Any]) -> dict[str, Any]:
    return dict(value)


def _freeze(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(value))


FrozenMap = Annotated[
    Mapping[str, V], AfterValidator(_freeze), PlainSerializer(_thaw, return_type=dict)
]
"""A mapping that nobody can write to once the record is built."""


class Value(BaseModel):
    """Base of the records: frozen, and a field that is not known is an error.

    Infinite and NaN floats are written as strings, so that a record can always be read back. What
    checks a record is made at its first use: a command that shows none does not pay for it.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_inf_nan="strings", defer_build=True
    )

    def content_digest(self) -> str:
        """SHA-256 (16 hex digits) of the canonical JSON: the same value has the same digest."""
        return digest_of(self.model_dump_json())


def digest_of(text: str | bytes) -> str:
    """SHA-256 of a text, shortened to 16 hex digits."""
    data = text.encode() if isinstance(text, str) else text
    return hashlib.sha256(data).hexdigest()[:16]


def problem_of(error: ValidationError) -> str:
    """The first of a record's problems, on one line, and how many there are."""
    problems = error.errors(include_url=False, include_input=False)
    first = problems[0]
    where = ".".join(map(str, first["loc"])) or "the record"
    return f"{where}: {first['msg']} ({len(problems)} in all)"


INPUTS_OVERWRITTEN = "inputs_overwritten"
"""The fact of a sample that names those of its inputs which are not as drawn after its work."""

LOSS, LOSS_ALLOWANCE = "loss", "loss_allowance"
"""The series of a sample that holds the loss of each timed step, and the fact that says how far the
arms' may be apart, as a share of the reference's."""

TOKENS = "tokens/"
"""Beginning of the series of a sample that hold the token of each stream in a timed step."""


def named_digests(digests: Mapping[str, str]) -> str:
    """Digests of the parts of one thing as one, such as ``clean:31f2.. noise:77ab..``."""
    return " ".join(f"{name}:{digest[:8]}" for name, digest in digests.items())


def unlike(one: str, other: str) -> str:
    """How two digests differ: the names of their parts if they have some; empty if they do not."""
    if one == other:
        return ""
    mine, others = parts_of(one), parts_of(other)
    if not mine or mine.keys() != others.keys():
        return f"{one} and {other}"
    return ", ".join(name for name in mine if mine[name] != others[name])


def parts_of(digest: str) -> dict[str, str]:
    """Digest by name; empty where a part has no name or two have the same."""
    words = [word.partition(":") for word in digest.split()]
    found = {name: value for name, _, value in words if value}
    return found if len(found) == len(words) else {}


def merged_digests(digests: Sequence[str]) -> str:
    """Digests of several processes as one, by part where all of them have the same parts."""
    parts = [parts_of(one) for one in digests]
    if not parts[0] or any(one.keys() != parts[0].keys() for one in parts):
        return digest_of(" ".join(digests))
    names = parts[0]
    return named_digests({name: digest_of(" ".join(one[name] for one in parts)) for name in names})
