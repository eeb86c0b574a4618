"""Public fault reports about arms that reach each other, through real measured processes."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.arms import sample_of, witness_of
from experiments.decide.early import decide_before_timing
from experiments.decide.evidence import Evidence
from experiments.decide.samples import decide_samples
from experiments.executor import Executor
from experiments.exit_codes import Exit, exit_code
from experiments.plan import Run
from experiments.records import Decision, Outcome, Sample
from experiments.replay import decide_again
from experiments.run_record import RunRecord
from experiments.tasks import TaskResult
from tests.experiments.test_runner import FakeExecutor, Sitting
from tests.support import runs
from tests.support.stub_workload import RATE, STUB

LEVERS = {
    "late_cublas": """
        import os
        def enable():
            os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        LEVER = Planted("late_cublas", lambda found: named(found, "kernel=late"), at_enable=enable)
    """,
    "hoarder": """
        KEPT = []
        def enable():
            import torch
            torch.backends.cuda.matmul.allow_tf32 = True
            KEPT.append(torch.ones(64 << 20))
        LEVER = Planted("hoarder", lambda found: named(found, "kernel=hoarder"), at_enable=enable)
    """,
    "forking": """
        import subprocess
        def enable():
            subprocess.Popen(["sleep", "86398"], start_new_session=True)
        LEVER = Planted("forking", lambda found: named(found, "kernel=forking"), at_enable=enable)
    """,
    "pooling": """
        import os
        import psutil
        def enable():
            from torch._inductor import async_compile, config
            config.compile_threads, config.worker_start_method = 2, "subprocess"
            async_compile.AsyncCompile.process_pool()
            os.environ["TRITON_PTXAS_PATH"] = "/torch/bin/ptxas"
            assert psutil.Process().children()
        def wrap(found):
            return named(found, "kernel=pooling")
        LEVER = Planted("pooling", wrap, at_enable=enable)
    """,
    "scribbling": """
        def wrap(found):
            def launch(x_NN, y_NN):
                x_NN[0, 0] += 1
                return found(x_NN, y_NN)[0], "kernel=scribbling"
            return launch
        LEVER = Planted("scribbling", wrap)
    """,
    "wording": """
        from dataclasses import dataclass
        ENABLED = []
        @dataclass(frozen=True)
        class Wording(Planted):
            def witness(self, site):
                return {axis: "mine" if ENABLED else "theirs" for axis in site.observations}
        LEVER = Wording("wording", lambda found: found, at_enable=lambda: ENABLED.append(1))
    """,
    "compiling": """
        CALLS = []
        def wrap(found):
            def launch(x_NN, y_NN):
                import torch
                CALLS.append(1)
                if len(CALLS) == 4:
                    torch.compile(lambda x: x + 1, backend="eager")(x_NN)
                return found(x_NN, y_NN)[0], "kernel=compiling"
            return launch
        LEVER = Planted("compiling", wrap)
    """,
    "unread": """
        from levers.base import Settings
        class Unread(Planted):
            def enable(self, site, setting):
                self.asked.append(setting)
                return site.launch
        LEVER = Unread("unread", lambda found: found, settings=Settings(("off", "on", "faster")))
        object.__setattr__(LEVER, "asked", [])
    """,
}
"""Levers as a third party would write them, one fault each."""

HEAD = '"""A lever with a fault."""\nfrom tests.support.planted_lever import Planted, named\n'
SHELL = {"LEVER_UNREAD": "on", "LEVER_HOARDER": "on", "CUDA_VISIBLE_DEVICES": "0"}


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    folder = tmp_path_factory.mktemp("levers")
    for name, text in LEVERS.items():
        (folder / f"{name}.py").write_text(HEAD + textwrap.dedent(text))
    with pytest.MonkeyPatch.context() as patch:
        runs.use_stub(patch)
        patch.setenv("LEVERGATE_LEVERS", str(folder))
        spec = runs.spec("hoarder")
        frozen = runs.frozen(spec, environ={**os.environ, **SHELL})
        with Executor(frozen, tmp_path_factory.mktemp("work")) as executor:
            yield executor


def samples(executor: Executor, lever: str, arms: tuple[str, ...] = ("ref", "cand")) -> Any:
    """One pair through real processes, in this order of arms."""
    spec, found = runs.spec(lever), []
    for position, arm in enumerate(arms):
        execution = executor.run(runs.task(spec, arm=arm))
        assert execution.result.failure is None, execution.result.traceback
        run = Run(pair=0, position=position, arm=arm)  # type: ignore[arg-type]
        found.append(sample_of(run, execution))
    return tuple(found)


def evidence(**changes: Any) -> Evidence:
    axes = STUB.axes(runs.spec("hoarder").parameters)
    return Evidence(policy=runs.POLICY, axes=axes, **changes)


def spoilt(found: tuple[Sample, ...]) -> Decision:
    decision = decide_samples(evidence(samples=found, pairs=1))
    assert decision is not None
    assert exit_code(decision.outcome) is Exit.INVALID
    return decision


# https://github.com/meta-pytorch/tritonbench/pull/325
# https://github.com/microsoft/superbenchmark/pull/93
def test_an_arm_that_sets_flags_and_keeps_memory_leaves_the_other_as_it_is_alone(
    executor: Executor,
) -> None:
    def peak(arm: str) -> float:
        result = executor.run(runs.task(runs.spec("hoarder"), "witness", arm=arm)).result
        flags = [text for text in result.left_changed if "allow_tf32" in text]
        assert flags == (["torch.backends.cuda.matmul.allow_tf32: False -> True"] * (arm == "cand"))
        return float(result.facts["host_peak_bytes"] or 0)

    alone, first = peak("ref"), peak("cand")
    after, again = peak("ref"), peak("cand")
    assert first > alone + (200 << 20)
    assert after == pytest.approx(alone, rel=0.01)
    assert again == pytest.approx(first, rel=0.01)


# https://github.com/abicheck/abicheck/pull/1335
def test_a_lever_variable_of_the_shell_reaches_no_arm_and_the_record_says_what_was_set(
    executor: Executor,
) -> None:
    spec = runs.spec("hoarder")
    ref = executor.run(runs.task(spec, "witness", arm="ref")).result
    assert ref.plans[RATE] == "kernel=product x 1"
    frozen = executor.frozen
    assert frozen.removed["LEVER_HOARDER"] == "on"
    assert frozen.facts()["ref.LEVER_HOARDER"] == "off"
    assert frozen.facts()["cand.LEVER_HOARDER"] == "on"


# https://github.com/huggingface/transformers/pull/46755
# https://github.com/pytorch/pytorch/issues/195979
def test_a_lever_that_replaces_nothing_and_a_setting_that_nothing_reads_are_not_engaged(
    executor: Executor,
) -> None:
    for cand in ("on", "faster"):
        spec = runs.spec("unread", cand)
        found = tuple(
            witness_of(arm, executor.run(runs.task(spec, "witness", arm=arm)).result)
            for arm in ("ref", "cand")
        )
        decision = decide_before_timing(evidence(witnesses=found))
        assert decision is not None
        assert (decision.outcome, decision.reason) == (Outcome.INVALID, "not-engaged")
        assert "the same plan" in decision.detail


def test_a_lever_that_replaces_nothing_is_not_engaged_whatever_its_witness_says(
    executor: Executor,
) -> None:
    spec = runs.spec("wording")
    found = tuple(
        witness_of(arm, executor.run(runs.task(spec, "witness", arm=arm)).result)
        for arm in ("ref", "cand")
    )
    assert found[0].plans != found[1].plans
    decision = decide_before_timing(evidence(witnesses=found))
    assert decision is not None
    assert (decision.outcome, decision.reason) == (Outcome.INVALID, "not-engaged")
    assert "counted the same in both" in decision.detail


# https://github.com/pytorch/pytorch/issues/72831
def test_a_variable_that_is_set_after_torch_was_loaded_is_refused(executor: Executor) -> None:
    result = executor.run(runs.task(runs.spec("late_cublas"))).result
    assert (result.failure, result.stage) == ("unmet", "enable")
    assert "CUBLAS_WORKSPACE_CONFIG" in result.message
    assert "environment()" in result.message


def test_a_process_that_an_arm_leaves_running_is_ended_and_named(executor: Executor) -> None:
    result = executor.run(runs.task(runs.spec("forking"))).result
    assert result.left_changed == ("1 processes left running",)


def test_what_torch_compile_keeps_for_later_is_ended_and_is_no_levers_doing(
    executor: Executor,
) -> None:
    result = executor.run(runs.task(runs.spec("pooling"))).result
    assert (result.failure, result.left_changed) == (None, ())


def test_a_run_whose_arm_leaves_something_behind_ends_as_leaked(
    tmp_path: Path, executor: Executor
) -> None:
    def leaking(result: TaskResult) -> TaskResult:
        return result.model_copy(update={"left_changed": ("1 process",)})

    decision = decide_again(collected(tmp_path, leaking))
    assert (decision.outcome, decision.reason) == (Outcome.INVALID, "state-leaked")
    assert "cand: 1 process" in decision.detail


def test_inputs_that_an_arm_changes_are_found_in_real_samples(executor: Executor) -> None:
    decision = spoilt(samples(executor, "scribbling"))
    assert decision.reason == "inputs-differ"
    assert "ref and cand worked on different inputs" in decision.detail


def test_a_compilation_inside_a_timed_sample_is_found_in_a_real_process(
    executor: Executor,
) -> None:
    found = samples(executor, "compiling", ("cand",))
    decision = spoilt(found)
    assert (decision.reason, found[0].compilations) == ("recompiled", 1)


def test_an_output_that_is_shorter_is_no_speed_up(tmp_path: Path, executor: Executor) -> None:
    def shorter(result: TaskResult) -> TaskResult:
        assert result.measurement is not None
        measured = result.measurement.model_copy(update={"outputs_count": 7})
        return result.model_copy(update={"measurement": measured})

    decision = spoilt(collected(tmp_path, shorter).samples)
    assert decision.reason == "inputs-differ"
    assert "8 and 7 outputs" in decision.detail


def collected(folder: Path, change: Callable[[TaskResult], TaskResult]) -> RunRecord:
    """A run whose candidate's results are changed on their way to the samples."""
    sitting = Sitting(folder, runs.spec("hoarder", looks=(6,)))
    sitting.executor.answer = lambda task: (
        change(FakeExecutor.measured(task)) if task.arm == "cand" else FakeExecutor.measured(task)
    )
    return sitting.collect()[1]
