"""Which planted levers are run, and the outcome and reason that each must get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from experiments.requests import NO_ORACLE
from levers.errors import UnknownName


@dataclass(frozen=True, slots=True)
class Case:
    """One planted lever in one situation.

    Attributes:
        name: as ``--only`` takes it.
        lever: the planted lever's name.
        outcome, reason: what it must get.
        says: a piece of the decision's text that must be there.
        settings: parameters of the workload beside the defaults.
        oracle: the oracle that is measured.
        after: the case that must have run before, in the same scope: its lever is then on.
        takes_injection: it ships ON, and does not any more once it is slowed or spoilt.
    """

    name: str
    outcome: str
    reason: str
    lever: str = ""
    says: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    oracle: str = NO_ORACLE
    after: str = ""
    takes_injection: bool = False
    scope: str = field(default="")

    @property
    def planted(self) -> str:
        """The lever's full name."""
        return f"planted_{self.lever or self.name}"

    @property
    def parameters(self) -> dict[str, str]:
        """The workload's parameters; each case has a scope of its own, unless it follows one."""
        return {"scope": self.scope or self.after or self.name, **dict(self.settings)}


VIRTUAL = (("clock", "virtual"), ("steps", "24"))
ON, OFF, INVALID = "default-ON", "gated-OFF", "invalid"

CASES: tuple[Case, ...] = (
    Case("noop", INVALID, "not-engaged"),
    Case("leaky", INVALID, "not-restored", says="disable left"),
    Case("contaminating", INVALID, "not-restored", says="PLANTED_CONTAMINATION"),
    Case("slow_10", OFF, "regression"),
    Case("slow_20", OFF, "regression"),
    Case("fast_10", ON, "failing-axis-win", takes_injection=True),
    Case("slow_3", OFF, "slower", settings=VIRTUAL),
    Case("fast_3", ON, "failing-axis-win", settings=VIRTUAL, takes_injection=True),
    Case(
        "fast_3_passing",
        OFF,
        "no-failing-axis-win",
        lever="fast_3",
        settings=VIRTUAL,
        oracle="slower",
        says="passing",
    ),
    Case("same", "terminal", "not-worth-keeping", settings=VIRTUAL),
    Case("one_ulp", OFF, "parity-failed"),
    Case("one_row", OFF, "parity-failed", says="op"),
    Case("nan", OFF, "parity-failed", says="non-finite"),
    Case(
        "nan_both",
        INVALID,
        "reference-not-finite",
        lever="same",
        settings=(("inputs", "nan"),),
    ),
    Case("unwritten", OFF, "parity-failed", says="not written"),
    Case("crashing", OFF, "candidate-crashed", says="the candidate cannot"),
    Case("hanging", OFF, "candidate-hung", settings=(("limit_s", "8"),)),
    Case("oom", OFF, "out-of-memory"),
    Case(
        "oom_reference",
        INVALID,
        "reference-failed",
        lever="lean",
        settings=(("scratch", "huge"),),
        says="a capability that the reference lacks",
    ),
    Case("shorter", INVALID, "inputs-differ", settings=VIRTUAL, says="no speed-up"),
    Case("memory", OFF, "regression", settings=VIRTUAL, says="selftest/steps_s"),
    Case("read_alone", ON, "byte-exact", lever="read", settings=VIRTUAL),
    Case("layout_alone", ON, "byte-exact", lever="layout", settings=VIRTUAL),
    Case(
        "wrong_together",
        OFF,
        "parity-failed",
        lever="read",
        settings=VIRTUAL,
        after="layout_alone",
        says="stack",
    ),
)
"""Every planted fault of the design, each with its one right answer."""


def chosen(names: Sequence[str]) -> tuple[Case, ...]:
    """The cases of these names, each after the one that it follows; all where none is named.

    Raises:
        UnknownName: there is no such case.
    """
    known = {case.name: case for case in CASES}
    for name in names:
        if name not in known:
            raise UnknownName("self-test case", name, known)
    wanted = set(names) or set(known)
    wanted |= {known[name].after for name in wanted if known[name].after}
    return tuple(case for case in CASES if case.name in wanted)


def injectable(names: Sequence[str]) -> tuple[Case, ...]:
    """The chosen cases that ship ON by a win: an injected fault must change their verdict.

    Raises:
        UnknownName: there is no such case, or an injected fault could not change it.
    """
    able = {case.name: case for case in CASES if case.takes_injection}
    for name in names:
        if name not in able:
            raise UnknownName("self-test case that takes an injected fault", name, able)
    return tuple(case for case in able.values() if not names or case.name in names)
