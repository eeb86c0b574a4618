from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from experiments import compilations, global_state, worker
from experiments.failure_kinds import kind_of
from experiments.parity_records import CheckResult
from experiments.tasks import Task, TaskResult
from experiments.worker import Stage, execute
from levers.base import Site
from levers.errors import BadParameter, LeverConflict, NotRestored
from tests.support import runs


@pytest.fixture(autouse=True)
def _stub(monkeypatch: pytest.MonkeyPatch) -> None:
    runs.use_stub(monkeypatch)


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), "out-of-memory"),
        (OutOfMemoryError("CUDA"), "out-of-memory"),
        (RuntimeError("CUDA error: out of memory"), "out-of-memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 1 byte"), "out-of-memory"),
        (NotRestored("left"), "not-restored"),
        (FloatingPointError("nan"), "not-finite"),
        (LeverConflict("two"), "unmet"),
        (BadParameter("no model"), "unmet"),
        (SystemExit(1), "crashed"),
        (KeyboardInterrupt(), "crashed"),
        (RuntimeError("shape"), "crashed"),
    ],
)
def test_each_exception_has_its_kind(error: BaseException, kind: str) -> None:
    assert kind_of(error) == kind


def test_an_unknown_lever_is_a_failure_with_its_stage(tmp_path: Path) -> None:
    spec = runs.spec()
    task = runs.task(spec, levers=({"lever": "no_such", "setting": "on"},))
    stage = Stage(tmp_path / "stage")
    result = execute(task, stage, 0.0)
    assert (result.failure, result.stage) == ("crashed", "levers")
    assert "no lever 'no_such'" in result.message
    assert (tmp_path / "stage").read_text() == "levers"


def test_two_levers_on_one_site_conflict_before_anything_is_changed() -> None:
    both = [{"lever": name, "setting": "on"} for name in ("planted_fast", "planted_slow")]
    result = execute(runs.task(runs.spec(), levers=tuple(both)), Stage(None), 0.0)
    assert (result.failure, result.stage) == ("unmet", "levers")
    assert "both change stub.product" in result.message


def test_a_probe_gets_the_task_and_its_check_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def probe(task: Task, session: object) -> CheckResult:
        seen.append((task.kind, session))
        return CheckResult(name=task.kind, status="passed", passed=1, total=1)

    for kind, module in worker.PROBES.items():
        fake = ModuleType(module)
        fake.probe = probe  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module, fake)
        result = execute(runs.task(runs.spec(), kind), Stage(None), 0.0)
        assert result.check is not None, result.traceback
        assert result.check.name == kind
    assert seen == [(kind, None) for kind in ("op", "memcheck", "graph", "async")]


def test_the_probes_of_the_battery_are_there() -> None:
    import importlib

    for module in worker.PROBES.values():
        assert callable(importlib.import_module(module).probe)


def test_torch_flags_sites_and_variables_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    site = Site("s", print)
    before = global_state.take({"s": site})
    assert before.changed(global_state.take({"s": site})) == ()
    monkeypatch.setenv("A_NEW_VARIABLE", "1")
    site.launch = repr
    torch.use_deterministic_algorithms(True)
    try:
        changed = before.changed(global_state.take({"s": site}))
    finally:
        torch.use_deterministic_algorithms(False)
    assert changed == (
        "os.environ[A_NEW_VARIABLE]: (unset) -> '1'",
        "site s: print -> repr",
        "torch.deterministic_algorithms: False -> True",
    )


def test_a_compilation_inside_the_timed_part_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    knobs = ModuleType("triton.knobs")
    knobs.runtime = SimpleNamespace(jit_cache_hook=None)  # type: ignore[attr-defined]

    class Autotuner:
        def _bench(self) -> str:
            return "ran"

    tuner = ModuleType("triton.runtime.autotuner")
    tuner.Autotuner = Autotuner  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton.knobs", knobs)
    monkeypatch.setitem(sys.modules, "triton.runtime.autotuner", tuner)
    counter = compilations.CompilationCounter()
    before = counter.count()
    assert Autotuner()._bench() == "ran"
    assert knobs.runtime.jit_cache_hook(key="k") is False
    assert counter.count() - before == 2


def test_triton_and_dynamo_still_have_the_hooks_that_are_counted() -> None:
    import torch._dynamo.utils
    import triton.knobs
    import triton.runtime.autotuner

    assert hasattr(triton.runtime.autotuner.Autotuner, "_bench")
    assert hasattr(triton.knobs.runtime, "jit_cache_hook")
    assert "frames" in torch._dynamo.utils.counters or torch._dynamo.utils.counters is not None


def test_a_result_with_a_failure_is_still_json(tmp_path: Path) -> None:
    result = worker.failure(ValueError("x"), "measure")
    assert TaskResult.model_validate_json(result.model_dump_json()) == result
