"""In what the two arms' processes differed: variables, compile caches, autotuned kernels."""

from __future__ import annotations

from experiments.autotuned import winners
from experiments.run_record import RunRecord
from experiments.values import Scalar

Fact = tuple[str, str]
"""A label and its text."""

CACHE = "compile_cache"


def arm_facts(record: RunRecord) -> tuple[Fact, ...]:
    """What was set apart on purpose, and what autotuners chose; a fact of nothing is left out."""
    ref, cand = _of("ref", record), _of("cand", record)
    names = [n for n in sorted({*ref, *cand} - {CACHE}) if ref.get(n) != cand.get(n)]
    caches = _caches(_shown(ref, CACHE), _shown(cand, CACHE)) if CACHE in ref else ""
    apart = ", ".join(f"{name} {_shown(ref, name)} | {_shown(cand, name)}" for name in names)
    facts = (
        ("variables (ref | cand)", apart),
        ("compile caches (ref | cand)", caches),
        ("variables kept", str(record.environment.facts.get("declared_variables") or "")),
        *_autotuned(record),
    )
    return tuple(fact for fact in facts if fact[1])


def _caches(ref: str, cand: str) -> str:
    """Keys and states; the timed part of a sample holds no compilation in either state."""
    apart = ref.split()[-1] != cand.split()[-1]
    text = "; warm for one arm only: their warm-ups are not comparable" if apart else ""
    return f"{ref} | {cand}{text}"


def _of(arm: str, record: RunRecord) -> dict[str, Scalar]:
    """The facts that the environment states of one arm."""
    facts = record.environment.facts
    start = f"{arm}."
    return {k.removeprefix(start): v for k, v in facts.items() if k.startswith(start)}


def _shown(facts: dict[str, Scalar], name: str) -> str:
    value = facts.get(name)
    return "unset" if value is None else str(value)


def _autotuned(record: RunRecord) -> list[Fact]:
    found = [(one.arm, sorted(winners(one.facts).items())) for one in record.witnesses]
    return [
        (f"autotuned ({arm})", "; ".join(f"{kernel}: {best}" for kernel, best in chosen))
        for arm, chosen in found
    ]
