from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from experiments.parity import fresh_memory, sanitizer_doubts
from experiments.parity.memcheck import judge
from experiments.parity.sanitizer_doubts import MemoryAnswer, memory_of, settled
from experiments.parity.sanitizer_report import CASE, END, ENOUGH, Report
from experiments.tasks import Task
from levers.base import OpCase
from levers.known_reports import KnownReport
from tests.experiments.parity.test_parity_memcheck import FOUND, TAKEN, all_tools

READ = (
    "========= Uninitialized __global__ memory read of size 4 bytes\n"
    "=========     at our_reader(float *)+0x1b0 in reader.cu:7\n"
    "=========     by thread (0,0,0) in block (3,0,0)\n"
    "========= \n"
)
READS = Report(
    88,
    f"{READ * 1000}{END}\n========= ERROR SUMMARY: 43210 errors\n"
    "========= ERROR SUMMARY: 42210 errors were not printed. Use --print-limit option to adjust\n",
)
RIGHT = MemoryAnswer(cases=3, power=True, faults=(), capability=(9, 0))


@pytest.fixture
def sanitizer(tmp_path: Path) -> str:
    """A sanitizer of 2025.3 that reports a race in cuBLAS's kernel of PyTorch's own products."""
    path = tmp_path / "compute-sanitizer"
    path.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo "Version 2025.3.1.0 (build 1)"; exit 0; fi\n'
        f'echo "{END}"\n'
        'echo "========= Error: Race reported between Read access at nvjet_sm90_tst_NTN+0x97"\n'
        'echo "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"\n'
        "exit 88\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return str(path)


def after(
    sanitizer: str,
    monkeypatch: pytest.MonkeyPatch,
    answer: MemoryAnswer | None,
    **reports: Report,
) -> dict[str, Report]:
    monkeypatch.setattr(sanitizer_doubts, "memory_of", lambda path: answer)
    return settled(sanitizer, Path("task.json"), os.environ, all_tools(**reports))


def test_reads_that_an_old_tool_cannot_judge_are_set_aside_where_no_output_hangs_on_them(
    sanitizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert READS.errors == 43210
    assert "at our_reader" in READS.first_error
    found = after(sanitizer, monkeypatch, RIGHT, initcheck=READS)
    assert found["initcheck"].errors == 0
    result = judge(FOUND, found, (), TAKEN)
    assert result.status == "passed"
    assert result.figures["reports_set_aside"] == 1000
    assert "2025.3 does not see bulk asynchronous copies" in result.detail


@pytest.mark.parametrize(
    "answer",
    [
        None,
        RIGHT.model_copy(update={"faults": ("case: output 0",)}),
        RIGHT.model_copy(update={"power": False}),
        RIGHT.model_copy(update={"capability": (8, 0)}),
    ],
)
def test_they_count_where_the_second_look_does_not_clear_them(
    answer: MemoryAnswer | None, sanitizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = after(sanitizer, monkeypatch, answer, initcheck=READS)
    result = judge(FOUND, found, (), TAKEN)
    assert result.status == "failed"
    assert "initcheck counts 1000 in our_reader" in result.detail
    assert ("on filled memory" in result.detail) == (answer is None or answer.capability[0] == 9)


def test_a_tool_that_follows_bulk_copies_is_believed(
    sanitizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = Path(sanitizer).read_text().replace("2025.3", "2025.4")
    Path(sanitizer).write_text(new)
    assert after(sanitizer, monkeypatch, RIGHT, initcheck=READS)["initcheck"].errors == 43210
    Path(sanitizer).write_text(new.replace("Version", "Release"))
    assert after(sanitizer, monkeypatch, RIGHT, initcheck=READS)["initcheck"].errors == 43210


def test_copies_by_the_driver_are_reads_too_and_any_other_finding_counts(
    sanitizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = "========= Host API memory access error at host access to 0x7f00 of size 8 bytes\n"
    both = Report(88, READ + host + f"{END}\n========= ERROR SUMMARY: 2 errors\n")
    assert after(sanitizer, monkeypatch, RIGHT, initcheck=both)["initcheck"].errors == 0
    write = "========= Invalid __global__ write of size 4 bytes\n"
    three = Report(88, READ + host + write + f"{END}\n========= ERROR SUMMARY: 3 errors\n")
    assert after(sanitizer, monkeypatch, RIGHT, initcheck=three)["initcheck"].errors == 1


def test_a_headline_that_begins_amid_a_line_of_the_process_is_found(
    sanitizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Report(88, f"{READ}{CASE}two{READ}\n{READ}{END}========= ERROR SUMMARY: 3 errors\n")
    assert (len(shared.real), shared.finished) == (3, True)
    assert after(sanitizer, monkeypatch, RIGHT, initcheck=shared)["initcheck"].errors == 0


def test_a_headline_directly_after_a_line_that_the_process_drew_is_found() -> None:
    bar = Report(88, f"{CASE}one\nx=={READ}{END}\n========= ERROR SUMMARY: 1 error\n")
    assert len(bar.real) == 1
    assert bar.kernels == {"our_reader(float *)": 1}


def test_a_finding_of_an_unknown_kind_counts_and_is_repeated(
    sanitizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange = "========= Surprising kind of access of size 4 bytes\n=========     at our_reader\n"
    text = f"========= COMPUTE-SANITIZER\n{READ}{strange}{END}\n========= ERROR SUMMARY: 2 errors\n"
    found = after(sanitizer, monkeypatch, RIGHT, initcheck=Report(88, text))["initcheck"]
    assert found.errors == 1
    assert found.first_error.endswith("it also says: Surprising kind of access of size 4 bytes")


OVERFLOW = (
    "========= Warning: Error buffer overflow has been detected. Some records have been dropped\n"
    "========= 61184 errors were skipped (error buffer overflow).\n"
)


def test_dropped_findings_leave_initcheck_to_the_filled_memory_and_excuse_no_other_tool(
    sanitizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"{READ * 256}{OVERFLOW}{END}\n========= ERROR SUMMARY: 257 errors\n"
    reads = Report(88, text)
    assert after(sanitizer, monkeypatch, RIGHT, initcheck=reads)["initcheck"].errors == 0
    wrong = RIGHT.model_copy(update={"faults": ("out 0 of a case",)})
    assert after(sanitizer, monkeypatch, wrong, initcheck=reads)["initcheck"].errors == 257
    assert after(sanitizer, monkeypatch, None, initcheck=reads)["initcheck"].errors == 257
    known = KnownReport(tool="memcheck", kernel="our_reader", reason="known", source="a test")
    assert Report(88, text, [known]).errors == 257
    whole = Report(88, f"{READ * 256}{END}\n========= ERROR SUMMARY: 256 errors\n", [known])
    assert whole.errors == 0


STRANGE = "========= Surprising kind of access of size 4 bytes\n=========     at our_reader\n"


def test_a_finding_of_an_unknown_kind_is_repeated_where_nothing_is_set_aside() -> None:
    found = Report(88, f"{STRANGE}{END}\n========= ERROR SUMMARY: 1 error\n")
    assert found.errors == 1
    assert found.first_error.startswith("the tool counts 1; it shows 0 that are known")
    assert found.first_error.endswith("it also says: Surprising kind of access of size 4 bytes")


def test_a_finding_of_an_unknown_kind_is_repeated_beside_a_real_one() -> None:
    both = Report(88, f"{READ}{STRANGE}{END}\n========= ERROR SUMMARY: 2 errors\n")
    assert both.errors == 2
    assert both.first_error.startswith("Uninitialized __global__ memory read")
    assert both.first_error.endswith("it also says: Surprising kind of access of size 4 bytes")
    explained = Report(88, f"{READ}========= A word\n{END}\n========= ERROR SUMMARY: 1 error\n")
    assert "A word" not in explained.first_error


def test_a_tool_that_was_ended_after_many_reports_has_its_answer_from_filled_memory(
    sanitizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Report(None, READ * 998)
    assert ended.why_unfinished(1.0) == f"ended after {ENOUGH} reports"
    found = after(sanitizer, monkeypatch, RIGHT, initcheck=ended)
    assert (found["initcheck"].errors, judge(FOUND, found, (), TAKEN).total) == (0, 4)


def races(*kernels: str) -> Report:
    lines = [f"========= Error: Race reported between Read access at {k}+0x970\n" for k in kernels]
    end = f"{END}\n========= RACECHECK SUMMARY: {len(kernels)} hazards displayed\n"
    return Report(88, "".join(lines) + end)


def test_races_in_cublas_are_set_aside_where_products_of_pytorch_show_them_too(
    sanitizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_library = races(*["nvjet_sm90_tss_128x256_64x4_NTN"] * 23)
    found = after(sanitizer, monkeypatch, None, racecheck=of_library)
    assert found["racecheck"].errors == 0
    assert "of PyTorch's own products here" in judge(FOUND, found, (), TAKEN).detail


@pytest.mark.parametrize(
    "kernels",
    [("nvjet_sm90_tss_NTN", "our_kernel"), ("our_kernel",), ("sm90_xmma_gemm_bf16_tn",)],
)
def test_races_in_any_other_kernel_count(
    kernels: tuple[str, ...], sanitizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = after(sanitizer, monkeypatch, None, racecheck=races(*kernels))
    assert found["racecheck"].errors == 1


def test_what_was_known_before_stays_known(sanitizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = KnownReport("racecheck", "flash_bwd_sm90", "reason", "source")
    both = races("flash_bwd_sm90_object", "nvjet_sm90_tss_NTN").knowing([known])
    found = after(sanitizer, monkeypatch, None, racecheck=both)["racecheck"]
    assert (found.errors, sum(found.set_aside.values())) == (0, 2)


def case(call: object) -> OpCase:
    return OpCase(
        name="one",
        inputs=lambda seed: (torch.arange(8.0),),
        outputs=lambda inputs: (torch.empty(8),),
        reference=lambda inputs, outputs: None,
        candidate=lambda inputs, outputs: call(inputs[0], outputs[0]),  # type: ignore[operator]
        truth=lambda inputs: (),
    )


def writes_scratch_first(given: Tensor, output: Tensor) -> None:
    scratch = torch.empty_like(given)
    scratch.copy_(given)
    output.copy_(scratch)


def reads_scratch(given: Tensor, output: Tensor) -> None:
    output.copy_(given + given.new_empty(8).clamp(0, 1e-3))


def noisy(given: Tensor, output: Tensor) -> None:
    output.copy_(given + 1e-6 * torch.rand(8))


def rarely_noisy(given: Tensor, output: Tensor) -> None:
    """Of one rounding, in the first run alone."""
    calls.append(0)
    output.copy_(given * (1 + 1e-7) if len(calls) == 1 else given)


calls: list[int] = []


def noisy_and_reads(given: Tensor, output: Tensor) -> None:
    noisy(given + 0 * torch.empty(8), output)


def test_an_output_that_hangs_on_fresh_memory_is_found_and_scratch_is_not() -> None:
    assert fresh_memory.has_power("cpu")
    assert fresh_memory.faults([case(writes_scratch_first)], 7) == ()
    assert fresh_memory.faults([case(reads_scratch)], 7) == (
        "one: output 0 changes with what fresh memory holds",
    )


kept: dict[str, Tensor] = {}


def adds_to_kept_scratch(given: Tensor, output: Tensor) -> None:
    """Scratch that is allocated in the first call of the process, and never written."""
    output.copy_(given + 0 * kept.setdefault("scratch", torch.empty(8)))


def counts_in_kept_scratch(given: Tensor, output: Tensor) -> None:
    """Flags that are taken for zeros, and are zeros after the first call."""
    flags = kept.setdefault("flags", torch.empty(8, dtype=torch.int32))
    output.copy_(given + (flags != 0))
    flags.zero_()


def grows_scratch(given: Tensor, output: Tensor) -> None:
    output.copy_(given + 0 * torch.empty(0).resize_(8))


def takes_a_minimum(given: Tensor, output: Tensor) -> None:
    output.copy_(torch.fmin(-given, torch.empty(8)))


def asks_for_its_sign(given: Tensor, output: Tensor) -> None:
    """What an earlier run left may be what a filled run finds."""
    output.copy_(torch.where(torch.empty(8) > -1e30, given, given + 1))


@pytest.mark.parametrize(
    "call",
    [
        adds_to_kept_scratch,
        counts_in_kept_scratch,
        grows_scratch,
        takes_a_minimum,
        asks_for_its_sign,
    ],
)
def test_reads_that_hide_from_one_pattern_or_after_one_call_are_found(call: object) -> None:
    kept.clear()
    assert len(fresh_memory.faults([case(call)], 7)) == 1


def test_scratch_that_is_kept_after_it_was_written_is_right() -> None:
    def writes(given: Tensor, output: Tensor) -> None:
        if "packed" not in kept:
            kept["packed"] = torch.empty(8).copy_(given)
        output.copy_(kept["packed"])

    kept.clear()
    assert fresh_memory.faults([case(writes)], 7) == ()


def test_a_finding_of_another_kind_counts_beside_reads_that_say_nothing(
    sanitizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = "========= Another fault of a later release\n"
    both = Report(88, f"{READ}{new}{END}\n========= ERROR SUMMARY: 2 errors\n")
    assert after(sanitizer, monkeypatch, RIGHT, initcheck=both)["initcheck"].errors == 1


def test_a_call_that_does_not_repeat_itself_is_held_against_its_own_spread() -> None:
    assert fresh_memory.faults([case(noisy)], 7) == ()
    assert fresh_memory.faults([case(rarely_noisy)], 7) == ()
    assert len(calls) >= 4
    assert len(fresh_memory.faults([case(noisy_and_reads)], 7)) == 1


def test_the_process_answers_for_the_cases_of_a_task(tmp_path: Path) -> None:
    task = Task(
        kind="memcheck",
        arm="cand",
        workload="slat_flow",
        parameters={},
        device="cpu",
        seed=3,
        levers=(),
        subject={"lever": "fused_modulate", "setting": "on"},
        arguments={"ref": "off"},
    )
    path = tmp_path / "task.json"
    path.write_text(task.model_dump_json())
    answer = memory_of(path)
    assert answer is not None
    assert answer.power
    assert answer.faults == ()
    assert answer.cases > 1
    assert answer.capability == ()


def test_filled_memory_that_is_not_through_in_time_leaves_doubtful_reads_without_an_answer(
    sanitizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(path: Path) -> None:
        raise subprocess.TimeoutExpired("memcheck_cases", 240)

    monkeypatch.setattr(sanitizer_doubts, "memory_of", slow)
    write = "========= Invalid __global__ write of size 4 bytes\n"
    reads = Report(88, READ * 3 + f"{END}\n========= ERROR SUMMARY: 3 errors\n")
    both = Report(88, READ + write + f"{END}\n========= ERROR SUMMARY: 2 errors\n")
    for report, errors in ((reads, None), (both, 2)):
        found = settled(sanitizer, Path("task.json"), os.environ, {"initcheck": report})
        assert found["initcheck"].errors == errors
    alone = settled(sanitizer, Path("task.json"), os.environ, {"initcheck": reads})
    assert "not through after 240 s" in alone["initcheck"].why_unfinished(150)
