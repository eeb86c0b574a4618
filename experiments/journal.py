"""The lines of a run's journal, and how they add up to a record."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from experiments.parity_records import CheckResult, ParityReport
from experiments.records import ArmFailure, Look, LostPair, RunStatus, Sample, Timing
from experiments.run_record import RunRecord
from experiments.values import Value
from experiments.witness_records import Witness


@dataclass(frozen=True, slots=True)
class Entry:
    """One line: what kind of event, and its value: a record, or what JSON holds."""

    kind: str
    value: Any


def encode(entry: Entry) -> bytes:
    """The line with its newline; a line without one was cut."""
    value = entry.value
    body = value.model_dump_json() if isinstance(value, Value) else json.dumps(value)
    return f'{{"kind":"{entry.kind}","value":{body}}}\n'.encode()


@dataclass(slots=True)
class Contents:
    """What the lines of a journal add up to."""

    samples: dict[tuple[int, str], Sample] = field(default_factory=dict)
    dropped: set[tuple[int, str]] = field(default_factory=set)
    lost: list[LostPair] = field(default_factory=list)
    witnesses: dict[str, Witness] = field(default_factory=dict)
    checks: dict[str, CheckResult] = field(default_factory=dict)
    parity: ParityReport | None = None
    failures: list[ArmFailure] = field(default_factory=list)
    faults: list[tuple[str, str]] = field(default_factory=list)
    warnings: dict[str, None] = field(default_factory=dict)
    looks: dict[int, Look] = field(default_factory=dict)
    timing: Timing | None = None
    notes: list[dict[str, Any]] = field(default_factory=list)

    def has(self, pair: int, arm: str) -> bool:
        """Whether this arm of this pair has a sample."""
        return (pair, arm) in self.samples

    def noted(self, name: str) -> dict[str, Any] | None:
        """The last note of that name."""
        return next((one for one in reversed(self.notes) if one["name"] == name), None)

    def add(self, entry: Entry) -> None:
        """Take in one line.

        Raises:
            ValueError: a kind or a value that is not known, or a sample that is there already.
        """
        adder = _ADDERS.get(entry.kind)
        if adder is None:
            raise ValueError(f"unknown kind of line {entry.kind!r}")
        adder(self, entry.value)

    def _sample(self, value: Any) -> None:
        sample = Sample.model_validate(value)
        if self.has(sample.pair, sample.arm):
            raise ValueError(f"pair {sample.pair} has two {sample.arm} samples")
        self.samples[sample.pair, sample.arm] = sample
        self.dropped.discard((sample.pair, sample.arm))

    def _drop(self, value: Any) -> None:
        key = (value["pair"], value["arm"])
        if key not in self.samples:
            raise ValueError(f"pair {key[0]} has no {key[1]} sample to drop")
        del self.samples[key]
        self.dropped.add(key)

    def _timing(self, value: Any) -> None:
        sitting = Timing.model_validate(value)
        self.timing = sitting if self.timing is None else _sum(self.timing, sitting)

    def _witness(self, value: Any) -> None:
        witness = Witness.model_validate(value)
        self.witnesses[witness.arm] = witness

    def _check(self, value: Any) -> None:
        check = CheckResult.model_validate(value)
        self.checks[check.name] = check

    def _look(self, value: Any) -> None:
        look = Look.model_validate(value)
        self.looks[look.index] = look

    def _parity(self, value: Any) -> None:
        self.parity = ParityReport.model_validate(value)

    def _forgotten(self, _: Any) -> None:
        """All that was found before any timing: it is to be found again."""
        if self.samples:
            raise ValueError("there are samples, for which witness and parity were taken")
        self.witnesses.clear()
        self.checks.clear()
        self.parity = None
        self.failures.clear()
        self.faults.clear()


_ADDERS: dict[str, Any] = {
    "sample": Contents._sample,
    "dropped": Contents._drop,
    "lost": lambda contents, value: contents.lost.append(LostPair.model_validate(value)),
    "witness": Contents._witness,
    "check": Contents._check,
    "parity": Contents._parity,
    "failure": lambda contents, value: contents.failures.append(ArmFailure.model_validate(value)),
    "fault": lambda contents, value: contents.faults.append((str(value[0]), str(value[1]))),
    "warning": lambda contents, value: contents.warnings.update({str(value): None}),
    "look": Contents._look,
    "timing": Contents._timing,
    "forgotten": Contents._forgotten,
    "note": lambda contents, value: contents.notes.append(dict(value)),
}


def _sum(one: Timing, other: Timing) -> Timing:
    mine, theirs = one.model_dump(), other.model_dump()
    return Timing(**{name: mine[name] + theirs[name] for name in mine})


def assemble(head: RunRecord, contents: Contents, status: RunStatus) -> RunRecord:
    """The record that the head and the lines add up to.

    Warnings and faults of the head (found before the first line) come first.
    """
    found: dict[str, Any] = {
        "status": status,
        "samples": tuple(contents.samples.values()),
        "lost": tuple(contents.lost),
        "witnesses": tuple(contents.witnesses.values()),
        "parity": contents.parity,
        "failures": tuple(contents.failures),
        "faults": (*head.faults, *contents.faults),
        "warnings": (*head.warnings, *contents.warnings),
        "looks": tuple(look for _, look in sorted(contents.looks.items())),
        "timing": contents.timing,
    }
    return RunRecord(**{**dict(head), **found})
