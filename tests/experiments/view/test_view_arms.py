from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import records_factory as factory

from experiments import render
from experiments.view.arms import arm_facts
from experiments.view.verdict import view
from tests.support import runs


def record(witnesses: tuple[Any, ...] = (), **facts: Any) -> Any:
    environment = factory.environment(facts=facts)
    found = factory.default_on()
    return found.model_copy(
        update={"environment": environment, "witnesses": witnesses or found.witnesses}
    )


def test_the_arms_differences_are_shown_and_what_is_equal_is_not() -> None:
    facts = dict(
        arm_facts(
            record(
                **{
                    "ref.LEVER_X": "off",
                    "cand.LEVER_X": "on",
                    "cand.X_EARLY": "1",
                    "ref.LEVER_Y": "on",
                    "cand.LEVER_Y": "on",
                    "ref.compile_cache": "aa cold",
                    "cand.compile_cache": "bb cold",
                    "declared_variables": "OMP_NUM_THREADS",
                }
            )
        )
    )
    assert facts["variables (ref | cand)"] == "LEVER_X off | on, X_EARLY unset | 1"
    assert facts["compile caches (ref | cand)"] == "aa cold | bb cold"
    assert facts["variables kept"] == "OMP_NUM_THREADS"


def test_a_record_without_such_facts_shows_none() -> None:
    assert arm_facts(record()) == ()


def test_autotuned_kernels_stand_in_the_reports_provenance() -> None:
    found = factory.default_on().witnesses
    tuned = tuple(
        one.model_copy(update={"facts": {"autotune.gemm[(8,)]": "BLOCK 64"}}) for one in found
    )
    text = render.markdown(view(record(tuned)))
    assert "autotuned (cand): gemm[(8,)]: BLOCK 64" in text.replace("\\", "")


def test_what_the_frozen_environment_states_is_what_is_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs.use_stub(monkeypatch)
    spec = runs.spec("planted_at_import")
    cold = runs.frozen(spec, arm_caches=tmp_path)
    assert {state.split()[1] for state in cold.caches.values()} == {"cold"}
    kernels = Path(cold.additions(runs.task(spec))["TRITON_CACHE_DIR"])
    kernels.mkdir(parents=True)
    (kernels / "kernel.cubin").touch()
    frozen = runs.frozen(spec, arm_caches=tmp_path)
    shown = dict(arm_facts(record(**frozen.facts())))
    apart = shown["variables (ref | cand)"]
    assert apart == "LEVER_PLANTED_AT_IMPORT off | on, PLANTED_EARLY unset | 1"
    ref, _, cand = shown["compile caches (ref | cand)"].partition(" | ")
    assert ref.endswith(" cold")
    assert cand.startswith(f"{kernels.parent.name} warm; warm for one arm only")
