from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]

import cli
from experiments import environment, pipeline, profiling
from experiments.executor import Execution
from experiments.profiling_records import GROUPS, Group, Profile
from experiments.records import Decision, Outcome
from experiments.registry.store import Registry
from experiments.roofline.groups import of_kernel, of_operator, union_ms
from experiments.roofline.task import BYTE_FACTS, FLOP_FACTS, profiled, work_of
from experiments.roofline.view import gaps, groups, kernels
from experiments.run_record import RunRecord
from experiments.tasks import Task, TaskResult
from experiments.workloads.base import DeviceFacts
from experiments.workloads.decode.session import open_session as decode_session
from experiments.workloads.decode.workload import DECODE
from experiments.workloads.flow.session import open_session as flow_session
from experiments.workloads.flow.workload import SLAT_FLOW
from levers import catalog
from levers.source import source_digest
from tests.support import evidence_factory, run_factory, runs
from tests.support.stub_workload import RATE, STUB

CPU = DeviceFacts("cpu", "cpu", 8 << 30)
FLOW = {"depth": "2", "bs": "2", "tokens": "24", "cap": "64", "steps": "2", "warmup": "1"}
DECODED = {
    "prompt_tokens": "32",
    "output_tokens": "24",
    "round_steps": "20",
    "rounds": "1",
    "ttft_repeats": "20",
    "ttft_tokens": "8",
    "concurrency": "1",
}

RESULTS = Path(__file__).parents[3] / "docs/results/h200"


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT", "gemm"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1", "gemm"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128>", "gemm"),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3", "attention"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add>",
            "row kernels",
        ),
        (
            "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>",
            "row kernels",
        ),
        ("_modulate_forward", "row kernels"),
        ("_gate_residual_backward", "row kernels"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", "reductions"),
        ("void at::native::indexing_backward_kernel<c10::BFloat16, 4>", "reductions"),
        ("_segment_sum_partial", "reductions"),
        ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>", "optimiser"),
        ("Memcpy DtoD (Device -> Device)", "copies"),
        ("Memset (Device)", "copies"),
        ("void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda>", "copies"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "communication"),
        ("_split_kernel", "attention"),
        ("merge_kernel", "attention"),
        ("_one_row", "gemm"),
        ("_few_rows", "gemm"),
        ("_add_norm", "row kernels"),
        ("_qk_norm_rope", "row kernels"),
        ("some_kernel_that_nobody_knows", "other"),
    ],
)
def test_a_kernel_is_classed_by_its_name(name: str, group: Group) -> None:
    assert of_kernel(name) == group


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("_backward", "row kernels"),
        ("residual_norm_backward", "row kernels"),
        ("_column_sums", "reductions"),
        ("_sum_partials", "reductions"),
        ("_cast_both", "copies"),
        ("_cast_four", "copies"),
        (
            "void at::native::unrolled_elementwise_kernel<at::native::bfloat16_copy_kernel_cuda",
            "copies",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<8, silu_kernel::{lambda()#1}>",
            "row kernels",
        ),
        ("void lamb_stage_2<float>", "optimiser"),
    ],
)
def test_the_kernels_of_the_training_levers_are_classed(name: str, group: Group) -> None:
    assert of_kernel(name) == group


def test_nothing_of_the_recorded_packed_step_is_left_to_other() -> None:
    found = json.loads((RESULTS / "flow_steps-slat-whole.json").read_text())
    times: dict[str, float] = {}
    for one in found["rows"][-1]["kernels"]:
        group = of_kernel(one["kernel"])
        times[group] = times.get(group, 0.0) + one["us"]
    assert times.get("other", 0.0) < 0.002 * sum(times.values())
    assert "optimiser" not in times  # that step has none


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("aten::addmm", "gemm"),
        ("levergate::weight_grad", "gemm"),
        ("levergate::both_grads", "gemm"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "attention"),
        ("aten::native_layer_norm", "row kernels"),
        ("aten::index_put_", "reductions"),
        ("aten::_fused_adamw_", "optimiser"),
        ("aten::copy_", "copies"),
        ("aten::as_strided", "host gap"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "host gap"),
        ("AddmmBackward0", "host gap"),
        ("FusedModulate", "host gap"),
        ("FusedModulateBackward", "host gap"),
        ("Optimizer.step#AdamW.step", "optimiser"),
        ("my_library::an_operator", "other"),
    ],
)
def test_an_operator_is_classed_by_its_name(name: str, group: Group) -> None:
    assert of_operator(name) == group


def test_what_runs_at_once_counts_once() -> None:
    assert union_ms([(0, 1000), (500, 2000), (5000, 6000)]) == pytest.approx(3.0)
    assert union_ms([]) == 0.0


def event(name: str, start: float, end: float, **changes: Any) -> Any:
    values = {
        "name": name,
        "device_type": DeviceType.CUDA,
        "time_range": SimpleNamespace(start=start, end=end),
        "is_user_annotation": False,
        "self_cpu_time_total": end - start,
    }
    return SimpleNamespace(**{**values, **changes})


def summed(times: profiling.Times, wall_ms: float, steps: int = 1) -> Profile:
    return profiling.summary(
        times,
        steps,
        wall_ms,
        device_kind="NVIDIA H200",
        levers=("a=on",),
        plain_step_ms=wall_ms,
        profiled_step_ms=1.2 * wall_ms,
        level="kernels",
        unit="step",
        ceilings={"gemm_flop_per_s": 790e12, "copy_bytes_per_s": 4.3e12},
    )


def test_the_groups_of_a_step_and_the_gap_add_up_to_its_wall_clock() -> None:
    times = profiling.read_kernels(
        [
            event("nvjet_tn", 0, 4000),
            event("flash_fwd", 4000, 6000),
            event("mystery", 7000, 8000),
            event("aten::mm", 0, 9000, device_type=DeviceType.CPU),
            event("step", 0, 9000, is_user_annotation=True),
        ]
    )
    profile = summed(times, 10.0)
    found = {one.group: one.ms for one in profile.groups}
    assert tuple(found) == GROUPS
    assert found["gemm"] == pytest.approx(4.0)
    assert found["other"] == pytest.approx(1.0)
    assert found["host gap"] == pytest.approx(3.0)
    assert sum(found.values()) == pytest.approx(profile.step_ms + profile.overlap_ms)


def test_kernels_side_by_side_are_overlap_and_not_gap() -> None:
    times = profiling.read_kernels([event("nvjet", 0, 4000), event("Memcpy HtoD", 1000, 3000)])
    profile = summed(times, 5.0)
    assert profile.overlap_ms == pytest.approx(2.0)
    assert next(one.ms for one in profile.groups if one.group == "host gap") == pytest.approx(1.0)


def test_a_group_with_known_work_is_held_against_the_ceiling() -> None:
    profile = summed(profiling.read_kernels([event("nvjet", 0, 10_000)]), 10.0)
    with_work = [
        one.model_copy(update={"flop": 3.95e12}) if one.group == "gemm" else one
        for one in profile.groups
    ]
    table = groups(profile.model_copy(update={"groups": tuple(with_work)}))
    gemm = next(row for row in table.rows if row[0] == "gemm")
    assert gemm[-2:] == ("395 TFLOP/s", "50.0 %")
    assert [row[0] for row in table.rows] == list(GROUPS)


def test_a_group_that_the_memory_bounds_is_held_against_the_copy() -> None:
    profile = summed(profiling.read_kernels([event("_modulate_forward", 0, 10_000)]), 10.0)
    with_bytes = [
        one.model_copy(update={"bytes": 21.5e9}) if one.group == "row kernels" else one
        for one in profile.groups
    ]
    table = groups(profile.model_copy(update={"groups": tuple(with_bytes)}))
    (row,) = [row for row in table.rows if row[0] == "row kernels"]
    assert row[-2:] == ("2.15 TB/s", "50.0 %")
    assert any("least bytes" in note for note in table.notes)
    assert not any("least bytes" in note for note in groups(profile).notes)


def test_kernels_beyond_the_longest_are_counted_and_not_lost() -> None:
    many = [event(f"kernel_{i}", 10 * i, 10 * i + 9 - i % 9) for i in range(60)]
    profile = summed(profiling.read_kernels(many), 1.0)
    assert len(profile.kernels) == profiling.MOST_KERNELS
    assert profile.others == 20
    assert kernels(profile).notes == ("48 more are left out here",)
    other = next(one for one in profile.groups if one.group == "other")
    assert other.launches == 60


def test_the_waits_of_the_device_are_told_by_the_kernels_around_them() -> None:
    step = [event("a", 0, 10), event("b", 30, 40), event("side", 35, 60), event("c", 70, 80)]
    times = profiling.read_kernels([*step, event("a", 80, 90), event("b", 130, 140)])
    profile = profiling.summary(
        times, 2, 1.0, device_kind="d", levers=(), plain_step_ms=1.0, profiled_step_ms=1.2,
        level="kernels", unit="step",
    )  # fmt: skip
    assert profile.idle_ms == pytest.approx((20 + 10 + 40) / 2 / 1e3)
    first, second = profile.gaps
    assert (first.after, first.before, first.times) == ("a", "b", 1.0)
    assert first.ms == pytest.approx(0.030)
    assert (second.after, second.before, second.times) == ("side", "c", 0.5)
    waits = gaps(profile)
    assert waits is not None
    assert waits.rows[0] == ("a", "b", "0.030", "1")
    assert "0.035 ms of a step" in waits.notes[0]
    assert any("slowed the host" in note for note in groups(profile).notes)
    assert gaps(profile.model_copy(update={"idle_ms": None})) is None


def test_a_profile_says_how_long_the_host_takes_to_enqueue_a_step() -> None:
    profile = profiling.summary(
        profiling.read_kernels([event("a", 0, 10)]), 1, 1.0, device_kind="d", levers=(),
        plain_step_ms=410.0, profiled_step_ms=411.0, level="kernels", unit="step",
        facts={"enqueue_ms": 260.5},
    )  # fmt: skip
    said = "the host takes 260.500 ms to enqueue a step of 410.000 ms"
    assert any(said in note for note in groups(profile).notes)
    silent = groups(profile.model_copy(update={"facts": {}}))
    assert not any("enqueue" in note for note in silent.notes)


def test_the_time_to_enqueue_ends_before_the_device_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    clock = iter(float(i) for i in range(100))
    monkeypatch.setattr(profiling.torch.cuda, "synchronize", lambda: order.append("wait"))
    monkeypatch.setattr(profiling.time, "perf_counter", lambda: order.append("t") or next(clock))
    assert profiling._enqueue_ms(lambda: order.append("work"), 2) == 1e3
    assert order == ["wait", "t", "work", "t"] * 2 + ["wait"]


def test_operators_of_a_cpu_have_no_waits() -> None:
    assert summed(profiling.Times(profiling.of_operator), 1.0).gaps == ()


class Step:
    """A session with a step of its own."""

    def __init__(self) -> None:
        self.x_NN = torch.randn(64, 64)
        self.steps = 0

    def step_once(self) -> None:
        self.steps += 1
        torch.nn.functional.gelu(self.x_NN @ self.x_NN)

    def exercise(self) -> None:
        raise AssertionError("the step is what is profiled")


def test_a_session_with_a_step_is_profiled_by_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "COPY_BYTES", {"cpu": 1 << 20})
    monkeypatch.setattr(profiling, "MATMUL_SIZE", {"cpu": 64})
    session = Step()
    task = runs.task(runs.spec(), kind="profile")
    found = profiling.profile(task, session)  # type: ignore[arg-type]
    assert found.unit == "step"
    assert session.steps == profiling.STEPS + profiling.PLAIN_STEPS
    by_group = {one.group: one for one in found.groups}
    assert by_group["gemm"].ms > 0
    assert by_group["row kernels"].launches == 1
    assert found.ceilings["copy_bytes_per_s"] > 0


def test_the_work_of_a_step_comes_from_a_timed_sample() -> None:
    said = {"matmul_flop": 2e12, "attention_flop": 1e12, "row_bytes": 3e9, "optimiser_bytes": 0.0}
    assert work_of(said, FLOP_FACTS) == {"gemm": 2e12, "attention": 1e12}
    assert work_of(said, BYTE_FACTS) == {"row kernels": 3e9}
    times = profiling.read_kernels([event("nvjet", 0, 1000)])
    answer = TaskResult(profile=summed(times, 2.0))

    class One:
        server_s = 0.0

        def run(self, task: Task, timeout_s: float | None = None) -> Execution:
            return Execution(answer, 1.0, "2026-01-01")

    facts = {"matmul_flop": 7e9, "row_bytes": 5e9}
    sample = evidence_factory.sample(0, "cand", {RATE: 1.0}, telemetry=facts)
    found = profiled(runs.spec(), (), "cand", One(), [sample])  # type: ignore[arg-type]
    assert found.profile is not None
    by_group = {one.group: one for one in found.profile.groups}
    assert (by_group["gemm"].flop, by_group["gemm"].bytes) == (7e9, None)
    assert by_group["row kernels"].bytes == 5e9
    assert found.profile.taken_at


@pytest.mark.parametrize(
    ("opener", "parameters"),
    [
        (flow_session, SLAT_FLOW.resolve(FLOW, CPU)),
        (decode_session, DECODE.resolve(DECODED, CPU)),
    ],
    ids=["slat_flow", "decode"],
)
def test_the_profiled_process_says_its_work_itself_where_nothing_was_timed(
    monkeypatch: pytest.MonkeyPatch, opener: Any, parameters: Any
) -> None:
    monkeypatch.setattr(profiling, "COPY_BYTES", {"cpu": 1 << 20})
    monkeypatch.setattr(profiling, "MATMUL_SIZE", {"cpu": 64})
    session = opener(parameters, "cpu", 1, "engine")
    session.warm_up()
    work = session.step_work()

    class InThisProcess:
        server_s = 0.0

        def run(self, task: Task, timeout_s: float | None = None) -> Execution:
            return Execution(TaskResult(profile=profiling.profile(task, session)), 1.0, "")

    found = profiled(runs.spec(), (), "cand", InThisProcess())  # type: ignore[arg-type]
    assert found.profile is not None
    by_group = {one.group: one for one in found.profile.groups}
    assert {name: one.flop for name, one in by_group.items() if one.flop} == work_of(
        work, FLOP_FACTS
    )
    assert {name: one.bytes for name, one in by_group.items() if one.bytes} == work_of(
        work, BYTE_FACTS
    )
    row = next(row for row in groups(found.profile).rows if row[0] == "gemm")
    assert "/s" in row[-2]
    assert row[-1].endswith("%")
    assert work.items() <= session.measure().facts.items()


def test_a_profile_that_fails_costs_a_line_and_no_result() -> None:
    class Broken:
        server_s = 0.0

        def run(self, task: Task, timeout_s: float | None = None) -> Execution:
            return Execution(TaskResult(failure="crashed", stage="profile", message="x"), 1.0, "")

    found = profiled(runs.spec(), (), "cand", Broken())  # type: ignore[arg-type]
    assert found.profile is None
    assert found.changes() == {"warnings": ("no profile: the process crashed at profile: x",)}


def stored_run() -> str:
    """A run of this machine in the registry, as an A/B leaves it."""
    device = environment.find_device("cpu")
    digest = source_digest(catalog.get("planted_fast"))
    record = run_factory.record(
        (),
        environment=environment.describe(device, {}, {}, {}),
        spec={**dict(runs.spec("planted_fast", levers_source_digest=digest))},
        axes=STUB.axes({}),
        targets=(),
        witnesses=(),
    )
    with Registry.open(pipeline.home().registry) as registry:
        registry.save(RunRecord(**{**dict(record), "status": "decided", "decision": decided()}))
    return record.run_id


def decided() -> Decision:
    return Decision(outcome=Outcome.TERMINAL, reason="not-worth-keeping")


@pytest.mark.slow
def test_a_run_is_profiled_on_request_and_its_roofline_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.use_stub(monkeypatch)
    monkeypatch.setenv("LEVERGATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LEVERGATE_LOCKS", str(tmp_path / "locks"))
    run_id = stored_run()
    assert cli.main(["roofline", run_id]) == 2
    assert f"levergate roofline {run_id} --record" in capsys.readouterr().err
    assert cli.main(["roofline", run_id, "--record", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["profile"]["levers"] == ["planted_fast=on"]
    assert answer["profile"]["unit"] == "pass"
    assert answer["run_id"] == run_id
    stored = (tmp_path / "home" / "runs" / run_id / "profile.json").read_bytes()
    assert Profile.model_validate_json(stored).model_dump(mode="json") == answer["profile"]
    assert cli.main(["roofline", run_id[:14]]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "host gap" in shown
    assert "other" in shown
