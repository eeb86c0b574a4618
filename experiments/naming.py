"""What the beginning of an id means: runs, stacks and selections share one kind of id."""

from __future__ import annotations

from typing import Literal

from experiments.family import store as family_store
from experiments.home import Home
from experiments.stack import store as stack_store
from levers.errors import UsageError

Kind = Literal["run", "stack", "selection"]

SHOWN = 8
"""How many of the results that fit a message lists."""


def kind_of(where: Home, prefix: str) -> Kind:
    """The kind of the stored result that an id or its beginning names; a run if nothing fits.

    Raises:
        UsageError: it fits several results of which not all are runs; the message lists them.
    """
    found: list[tuple[Kind, str]] = [("stack", one) for one in stack_store.ids(where)]
    found += [("selection", one) for one in family_store.ids(where)]
    found = [(kind, one) for kind, one in found if prefix and one.startswith(prefix)]
    if not found:  # runs alone: to look them up answers, and lists, for itself
        return "run"
    found += [("run", one) for one in _runs(where, prefix)]
    if whole := [kind for kind, one in found if one == prefix]:
        return whole[0]
    if len(found) > 1:
        shown = ", ".join(f"{kind} {one}" for kind, one in found[:SHOWN])
        more = ", ..." if len(found) > SHOWN else ""
        raise UsageError(
            f"{prefix!r} fits {len(found)} stored results", cure=f"give more: {shown}{more}"
        )
    return found[0][0]


def _runs(where: Home, prefix: str) -> list[str]:
    """The runs whose id begins so, in the registry or on disk."""
    from experiments import spool_reader
    from experiments.registry.store import Registry

    with Registry.open(where.registry) as registry:
        stored = registry.beginning(prefix)
    on_disk = [one for one in spool_reader.run_ids(where.runs) if one.startswith(prefix)]
    return sorted({*stored, *on_disk})
