"""Which options of ``ab`` do not go together, and what to leave out."""

from __future__ import annotations

from experiments.requests import AbRequest
from levers.errors import UsageError


def refuse(request: AbRequest, *, screen: bool, expects: bool) -> None:
    """Refuse options that do not go together.

    Raises:
        UsageError: two of them, with which to leave out.
    """
    if screen and (expects or request.resume is not None):
        raise UsageError(
            "a screen gives no verdict to expect, and there is nothing to resume",
            cure="leave out --expect and --resume, or --screen",
        )
    if screen and request.tokens_on:
        raise UsageError(
            "a screen compares no tokens", cure="leave out --tokens-on to screen, or --screen"
        )
    if screen and request.ranks > 1:
        raise UsageError(
            "a screen runs in one process", cure="leave out --ranks to screen, or --screen"
        )
    if request.profile and (screen or request.ranks > 1):
        raise UsageError(
            "a profile is of one process of a decided run",
            cure="leave out --profile, or --screen and --ranks",
        )
    if request.parity_only and screen:
        raise UsageError(
            "a screen has no parity", cure="leave out --parity-only to screen, or --screen"
        )
    if request.parity_only and (expects or request.profile):
        raise UsageError(
            "with --parity-only nothing is timed: what passes has no verdict to expect, and no "
            "step to profile",
            cure="leave out --expect and --profile, or --parity-only",
        )


def refuse_several(request: AbRequest) -> None:
    """Refuse to check several settings without timing them.

    Raises:
        UsageError: they are a selection.
    """
    if request.parity_only:
        raise UsageError(
            "--parity-only checks one candidate: several share a schedule of samples",
            cure="give one --cand at a time, each with the same --seed N; a selection with that "
            "seed then finds what passed",
        )
