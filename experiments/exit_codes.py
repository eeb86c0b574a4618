"""Exit codes of the command line; scripts and gates rely on them."""

from __future__ import annotations

from enum import IntEnum

from levers.errors import UsageError


class Exit(IntEnum):
    """What the process says to whoever started it."""

    VERDICT = 0
    INTERNAL = 1
    USAGE = 2
    INCONCLUSIVE = 3
    INVALID = 4
    UNEXPECTED = 5
    GATED_OFF = 10
    TERMINAL = 11
    INTERRUPTED = 130


OUTCOMES = ("default-ON", "gated-OFF", "terminal", "inconclusive", "invalid")
"""What ``--expect`` takes; spelled here so that the command line starts without pydantic."""

WITHOUT_VERDICT = {"inconclusive": Exit.INCONCLUSIVE, "invalid": Exit.INVALID}
DETAILED = {"gated-OFF": Exit.GATED_OFF, "terminal": Exit.TERMINAL}


def expected_outcome(text: str) -> str:
    """The outcome that ``--expect`` names, in any case of letters.

    Raises:
        UsageError: there is no such outcome; the message lists all of them.
    """
    for outcome in OUTCOMES:
        if text.lower() == outcome.lower():
            return outcome
    raise UsageError(f"no verdict {text!r}", cure=f"--expect takes {', '.join(OUTCOMES)}")


def exit_code(outcome: str | None, *, detailed: bool = False, expect: str | None = None) -> Exit:
    """The exit code of a run; None is a run that was stopped before it was decided.

    One that passed parity and was to be timed later is no such run: it ends as inconclusive.

    With ``expect``, that outcome gives 0 and another *verdict* gives 5; a run without a verdict
    keeps its own code, since nothing was found out.
    """
    if outcome is None:
        return Exit.INTERRUPTED
    if expect is not None and outcome == expect:
        return Exit.VERDICT
    if outcome in WITHOUT_VERDICT:
        return WITHOUT_VERDICT[outcome]
    if expect is not None:
        return Exit.UNEXPECTED
    return DETAILED.get(outcome, Exit.VERDICT) if detailed else Exit.VERDICT
