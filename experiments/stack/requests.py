"""What the command line asks of a stack: plain frozen dataclasses, read without pydantic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

DEFAULT_BLOCKS = 6
"""Blocks without ``--blocks``: three orders and their mirrors leave four degrees of freedom."""


@dataclass(frozen=True, slots=True)
class StackRequest:
    """One stack as typed: nothing is resolved or checked yet.

    Attributes:
        levers: ``name=setting`` in the order in which they are added; empty takes the levers that
            are default-ON in this scope, in the order of the catalog.
        first: parameters of the first row as text, where they are said to differ.
        published: figures of others to stand beside the rows, as text
            (:mod:`experiments.stack.published`).
        budget_s: wall-clock limit of the measuring part, in seconds.
        leave_one_out, pairs: whether these tables are measured too.
        resume: id of an interrupted stack to go on with.
        profile: whether the whole stack is profiled once at the end.
        ranks: processes of each row, each with its own device and part of the global batch.
        oracle: an outside implementation of the same work that runs once in every block, or None.
        stepwise: whether the levers are also added one by one; without, only the whole is measured.
        bare: whether an empty ``levers`` means no lever at all.
        tokens_on: models with which the tokens of the whole are compared, as in an A/B.
    """

    workload: str
    levers: tuple[str, ...] = ()
    device: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    first: Mapping[str, str] = field(default_factory=dict)
    published: tuple[str, ...] = ()
    blocks: int = DEFAULT_BLOCKS
    budget_s: float | None = None
    seed: int | None = None
    leave_one_out: bool = True
    pairs: bool = True
    resume: str | None = None
    profile: bool = False
    ranks: int = 1
    oracle: str | None = None
    stepwise: bool = True
    bare: bool = False
    tokens_on: tuple[str, ...] = ()
