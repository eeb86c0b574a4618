"""Reading a stored record back: from a newer version, damaged, or as it was."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError

from experiments.values import SCHEMA_VERSION, Value, problem_of
from levers.errors import StoreError

V = TypeVar("V", bound=Value)


def read_stored(kind: type[V], record: str, schema_version: int, what: str, cure: str) -> V:
    """The record in its column's JSON.

    Args:
        kind: the record's type.
        record: the JSON.
        schema_version: as stored beside it.
        what: names it in messages, such as ``a stored calibration``.
        cure: of a damaged one.

    Raises:
        StoreError: it is damaged, or from a newer version.
    """
    if schema_version > SCHEMA_VERSION:
        raise StoreError(
            f"{what} has schema version {schema_version}; this levergate knows up to "
            f"{SCHEMA_VERSION}",
            cure="upgrade levergate",
        )
    try:
        return kind.model_validate_json(record)
    except ValidationError as error:
        raise StoreError(f"{what} cannot be read: {problem_of(error)}", cure=cure) from error
