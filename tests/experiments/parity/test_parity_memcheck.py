from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.whole_stack import together
from experiments.parity import memcheck, sanitizer_tool
from experiments.parity.bench import Bench
from experiments.parity.memcheck import judge
from experiments.parity.sanitizer_report import CASE, END, Report
from experiments.parity.sanitizer_tool import run_tool, sanitizer_environment
from experiments.tasks import Task
from levers import catalog
from levers.errors import DefectiveLever
from levers.known_reports import KnownReport, known_reports
from tests.support.fake_arms import FakeArms, FakeLever, FakeWorkload, spec

CLEAN = Report(0, f"{END}\n========= ERROR SUMMARY: 0 errors\n")
INVALID = "========= Invalid __global__ write of size 4 bytes\n========= ERROR SUMMARY: 2 errors\n"
FOUND = Report(88, f"{END}\n{INVALID}")
NO_DRIVER = Report(1, "========= Error: no device\n")
LATE = Report(None, "")
TAKEN = (12, 96)


def all_tools(**other: Report) -> dict[str, Report]:
    return {tool: other.get(tool, CLEAN) for tool in memcheck.TOOLS}


def test_four_clean_tools_and_a_planted_fault_that_was_found_pass() -> None:
    found = judge(FOUND, all_tools(), (), TAKEN)
    assert (found.status, found.passed, found.total) == ("passed", 4, 4)
    assert "over 12 of 96 op cases" in found.detail
    assert (found.figures["op_cases_taken"], found.figures["op_cases"]) == TAKEN


def test_an_invalid_write_fails_and_is_quoted() -> None:
    found = judge(FOUND, all_tools(memcheck=FOUND), (), TAKEN)
    assert (found.status, found.where, found.passed) == ("failed", "memcheck", 3)
    assert "2 errors: Invalid __global__ write" in found.worst


def test_errors_count_even_where_the_process_died_of_them() -> None:
    died = Report(88, "========= Invalid __global__ write\n")
    assert judge(FOUND, all_tools(memcheck=died), (), TAKEN).status == "failed"


def test_a_sanitizer_that_misses_the_planted_fault_has_no_power() -> None:
    assert judge(CLEAN, all_tools(), (), TAKEN).status == "empty"


def test_a_sanitizer_that_cannot_start_is_not_a_pass() -> None:
    found = judge(NO_DRIVER, all_tools(), (), TAKEN)
    assert found.status == "not-run"
    assert "ended with code 1" in found.detail


def test_a_tool_that_is_not_through_is_named_and_not_counted() -> None:
    found = judge(FOUND, all_tools(racecheck=LATE), (), TAKEN)
    assert (found.status, found.total) == ("passed", 3)
    assert "racecheck not through" in found.detail
    assert judge(FOUND, dict.fromkeys(memcheck.TOOLS, LATE), (), TAKEN).status == "not-run"


def test_a_tool_that_did_not_attach_to_its_process_gave_no_answer() -> None:
    apart = Report(0, f"{END}\n========= Error: no instrumented API call was made\n")
    found = judge(FOUND, all_tools(racecheck=apart), (), TAKEN)
    assert (found.status, found.total) == ("passed", 3)
    assert "racecheck gave no sum of its findings (code 0)" in found.detail
    assert judge(FOUND, dict.fromkeys(memcheck.TOOLS, apart), (), TAKEN).status == "not-run"


OWN_WORDS = (
    "my log ========= Invalid argument was retried\n",
    "========= Host memory used: 3 GB\n",
)


@pytest.mark.parametrize("words", OWN_WORDS)
def test_what_a_lever_prints_is_no_finding_where_the_tool_found_none(words: str) -> None:
    for more in ("", "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"):
        clean = Report(0, f"{words}{END}\n========= ERROR SUMMARY: 0 errors\n{more}")
        assert (clean.errors, clean.first_error, clean.real) == (0, "", [])


@pytest.mark.parametrize("words", OWN_WORDS)
def test_such_words_count_where_the_tool_does_not_say_that_it_found_none(words: str) -> None:
    none = "========= ERROR SUMMARY: 0 errors\n"
    assert Report(0, f"{words}{END}\n").errors == 1, "it gave no sum"
    assert Report(0, f"{words}{none}").errors == 1, "the cases did not end"
    assert Report(88, f"{words}{END}\n{none}").errors == 1
    assert Report(None, f"{words}{END}\n{none}").errors == 1
    another = "========= ERROR SUMMARY: 3 errors\n"
    assert Report(0, f"{words}{END}\n{none}{another}").errors == 3, "another process has some"


def test_another_finding_than_the_planted_write_is_no_sign_of_power() -> None:
    failing = f"{ASKED.replace('cuGetProcAddress_v2', 'cuInit')}========= ERROR SUMMARY: 1 error\n"
    assert judge(Report(88, failing), all_tools(), (), TAKEN).status == "not-run"
    assert judge(Report(88, f"{failing}{END}\n"), all_tools(), (), TAKEN).status == "empty"


ASKED = (
    '========= Program hit CUDA_ERROR_INVALID_VALUE (error 1) due to "invalid argument" on CUDA '
    "API call to cuGetProcAddress_v2.\n"
    "=========     Saved host backtrace up to driver entry point at error\n"
)


def test_a_library_that_asks_for_functions_the_driver_lacks_is_no_error() -> None:
    asked = Report(88, f"{ASKED * 34}{END}\n========= ERROR SUMMARY: 34 errors\n")
    assert asked.errors == 0
    assert asked.first_error == ""
    assert judge(FOUND, all_tools(memcheck=asked), (), TAKEN).status == "passed"


def test_an_error_beside_such_questions_counts_and_is_the_one_that_is_shown() -> None:
    write = "========= Invalid __global__ write of size 4 bytes\n"
    both = Report(88, f"{ASKED * 34}{write}{END}\n========= ERROR SUMMARY: 35 errors\n")
    assert both.errors == 1
    assert both.first_error.startswith("Invalid __global__ write")


def test_questions_excuse_nothing_where_the_tool_gave_no_sum_or_the_cases_did_not_end() -> None:
    assert Report(88, f"{ASKED * 34}{END}\n").errors == 1
    assert Report(88, f"{ASKED * 34}========= ERROR SUMMARY: 34 errors\n").errors == 34
    other = ASKED.replace("cuGetProcAddress_v2", "cuMemcpyAsync")
    assert Report(88, f"{other}{END}\n========= ERROR SUMMARY: 1 errors\n").errors == 1


def test_expandable_segments_are_taken_out_and_said() -> None:
    given = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:64"}
    variables, stripped = sanitizer_environment(given)
    assert variables["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64"
    assert variables["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "1"
    assert stripped == ("PYTORCH_CUDA_ALLOC_CONF",)
    assert "expandable_segments taken out of" in judge(FOUND, all_tools(), stripped, TAKEN).detail
    alone, _ = sanitizer_environment({"PYTORCH_ALLOC_CONF": "expandable_segments:True"})
    assert "PYTORCH_ALLOC_CONF" not in alone


@pytest.fixture
def fake_tool(tmp_path: Path) -> Path:
    """A sanitizer that says what it was asked and complains under one tool."""
    path = tmp_path / "compute-sanitizer"
    path.write_text(
        "#!/bin/sh\n"
        f'echo "{END}"\n'
        'if [ "$2" = racecheck ]; then\n'
        '  echo "========= Error: Race reported between Write access at fake_kernel+0x10"\n'
        '  echo "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"\n'
        "  exit 88\n"
        "fi\n"
        'echo "========= ERROR SUMMARY: 0 errors"\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return path


def test_what_a_tool_says_is_read(fake_tool: Path) -> None:
    clean = run_tool(str(fake_tool), "memcheck", ["task.json"], os.environ)
    assert (clean.errors, clean.finished) == (0, True)
    raced = run_tool(str(fake_tool), "racecheck", ["task.json"], os.environ)
    assert raced.errors == 1
    assert "Race reported" in raced.first_error


def test_a_tool_that_has_shown_findings_enough_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "compute-sanitizer"
    path.write_text(
        "#!/bin/sh\n"
        "yes '========= Invalid __global__ write of size 4 bytes' | head -n 998\n"
        "sleep 600\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setattr(sanitizer_tool, "LOOK_EVERY_S", 0.1)
    ended = run_tool(str(path), "memcheck", ["task.json"], os.environ)
    assert (ended.code, ended.errors) == (None, 998)
    assert ended.seconds < 60


def test_a_tool_that_is_not_through_says_in_which_case_it_was() -> None:
    report = Report(None, f"{CASE}narrow: 2 x 8\n{CASE}wide: 7 x 8\n")
    assert report.errors is None
    assert report.why_unfinished(150) == "not through after 150 s (in wide: 7 x 8, case 2)"


LEAVES = """
import sys
from experiments import descendants
from experiments.parity import memcheck, op, sanitizer_tool
from experiments.tasks import Task
from tests.experiments.parity.test_parity_memcheck_choice import numbered

sanitizer_tool.TOOL_LIMIT_S = 1.0
sanitizer_tool.find_sanitizer = lambda: sys.argv[1]
op.cases_of = lambda task: numbered(3)
task = Task(kind="memcheck", arm="cand", workload="w", parameters={}, device="cuda:0", seed=0)
found = memcheck.probe(task, None)
print(found.status, descendants.children())
"""


def test_a_tool_that_is_not_through_in_time_is_ended_with_all_below_it(tmp_path: Path) -> None:
    path = tmp_path / "compute-sanitizer"
    path.write_text("#!/bin/sh\necho begun\nsetsid sleep 86397 &\nsleep 86397\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    words = [sys.executable, "-c", LEAVES, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "not-run []\n"
    running = [one.info["cmdline"] for one in psutil.process_iter(["cmdline"])]
    assert ["sleep", "86397"] not in running


def test_a_cuda_machine_without_the_sanitizer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizer_tool, "find_sanitizer", lambda: None)
    asked = spec(device="cuda:0")
    found = memcheck.check(Bench(asked, FakeLever(), FakeWorkload(), FakeArms(), "cuda"))
    assert found.status == "not-run"
    assert "compute-sanitizer" in found.detail


KNOWN = KnownReport(
    "racecheck", "bwd_sm90", "it does not follow raw bulk copies", "upstream's note"
)
RACE = (
    "========= Error: Race reported between Write access at kernel_bwd_sm90_object+0x1ab0\n"
    "=========     and Read access at kernel_bwd_sm90_object+0x2b0 [64 hazards]\n"
)


def test_reports_that_a_lever_knows_of_are_set_aside_counted_and_named() -> None:
    text = f"{RACE * 46}{END}\n========= RACECHECK SUMMARY: 46 hazards displayed (46 errors)\n"
    assert Report(88, text).errors == 46
    raced = Report(88, text, [KNOWN])
    assert (raced.errors, raced.first_error) == (0, "")
    found = judge(FOUND, all_tools(racecheck=raced), (), TAKEN)
    assert found.status == "passed"
    assert found.figures["reports_set_aside"] == 46
    assert "46 reports of racecheck on bwd_sm90 set aside" in found.detail
    assert "upstream's note" in found.detail


@pytest.mark.parametrize("line", [f"{CASE}two: 2 x 8", "a word of the lever", "====", END])
def test_a_report_is_known_where_the_process_spoke_before_its_place_was_named(line: str) -> None:
    at = "=========     at kernel_bwd_sm90_object+0x10 in x.cu:7\n"
    headline = "========= Barrier error detected. Divergent threads in block.\n"
    known = [KnownReport("synccheck", "bwd_sm90", "", "")]
    text = f"{CASE}one\n{headline}{line}\n{at}{END}\n========= ERROR SUMMARY: 1 error\n"
    assert Report(88, text, known).errors == 0
    ended = Report(None, f"{headline}{CASE}two\n{at}", known)
    assert (ended.errors, ended.why_unfinished(9)) == (
        None,
        "not through after 9 s (in two, case 1)",
    )
    nameless = text.replace(at, f"{headline}{at}").replace("1 error", "2 errors")
    assert Report(88, nameless, known).errors == 1, "the place is that of the second"


def test_a_report_of_another_kernel_fails_beside_those_that_are_known() -> None:
    other = RACE.replace("bwd_sm90", "our_kernel")
    text = f"{RACE * 2}{other}{END}\n========= RACECHECK SUMMARY: 3 hazards displayed (3 errors)\n"
    raced = Report(88, text, [KNOWN])
    assert raced.errors == 1
    assert "our_kernel" in raced.first_error
    assert judge(FOUND, all_tools(racecheck=raced), (), TAKEN).status == "failed"


def test_what_is_known_of_one_tool_excuses_no_other(fake_tool: Path) -> None:
    known = [KnownReport("memcheck", "fake_kernel", "", "")]
    assert run_tool(str(fake_tool), "racecheck", ["t"], os.environ, known).errors == 1
    known = [KnownReport("racecheck", "fake_kernel", "", "")]
    assert run_tool(str(fake_tool), "racecheck", ["t"], os.environ, known).errors == 0


def summed(text: str, tool: str = "RACECHECK", count: int = 0, more: str = "") -> str:
    return f"{text}{END}\n========= {tool} SUMMARY: {count} hazards displayed\n{more}"


OURS = RACE.replace("bwd_sm90", "ours")


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        (summed(RACE * 46, count=46), 0),
        (summed(ASKED * 34 + RACE * 46, count=46), 0),
        (summed(ASKED * 34 + RACE * 46, count=80), 0),
        (summed(RACE * 46, count=46, more="========= ERROR SUMMARY: 0 errors\n"), 0),
        (summed(ASKED * 34 + OURS * 20, count=20), 20),
        (summed(ASKED * 34 + RACE * 46 + OURS * 20, count=66), 20),
        (summed(RACE * 46, count=47), 47),
        (summed(RACE * 1000, count=1000), 1000),
        (summed(RACE * 46, count=46) * 2, 92),
        (summed(RACE, count=1, more="Warning: Maximum number of hazards reached.\n"), 1),
        (summed(ASKED * 68, "ERROR", 35), 35),
        (summed(OURS.replace("+0x1ab0", "+0x1ab0 in /bwd_sm90/x.cu:7"), count=1), 1),
    ],
)
def test_a_code_is_excused_only_where_every_finding_is_explained(text: str, errors: int) -> None:
    assert Report(88, text, [KNOWN]).errors == errors


def test_of_two_that_know_a_kernel_the_first_takes_its_reports() -> None:
    both = [KNOWN, KnownReport("racecheck", "sm90_object", "", "")]
    assert Report(88, summed(RACE * 3 + OURS * 3, count=6), both).errors == 3


def test_a_finding_counts_although_the_tool_was_not_through() -> None:
    late = Report(None, "========= Invalid __global__ write of size 4 bytes\n")
    assert late.errors == 1
    assert judge(FOUND, all_tools(memcheck=late), (), TAKEN).status == "failed"


def test_too_little_of_a_kernels_name_is_refused() -> None:
    with pytest.raises(ValueError, match="at least"):
        KnownReport("racecheck", "", "", "")


@pytest.mark.parametrize(
    "blanket",
    [
        KnownReport("memcheck", "", "", "", headline="Invalid __global__ write"),
        KnownReport("initcheck", "our_kernel", "", "", instead=True),
    ],
)
def test_a_lever_sets_no_reports_aside_but_those_of_a_kernel_that_it_names(
    blanket: KnownReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Excusing(FakeLever):
        def known_reports(self, setting: str) -> tuple[KnownReport, ...]:
            return (KNOWN, blanket)

    monkeypatch.setattr(catalog, "get", lambda name: Excusing())
    task = Task.model_validate(
        {
            **{"kind": "memcheck", "arm": "ref", "workload": "w", "device": "cuda:0", "seed": 0},
            **{"parameters": {}, "arguments": {"reference_only": True}},
            "subject": {"lever": "planted", "setting": "on"},
        }
    )
    with pytest.raises(DefectiveLever, match="any kernel"):
        memcheck.probe(task, None)


def test_only_the_fourth_backend_knows_of_reports_and_a_set_has_its_members() -> None:
    lever = catalog.get("attn_backend")
    assert [one.tool for one in known_reports(lever, "fa4")] == ["racecheck"]
    assert known_reports(lever, "cudnn") == ()
    assert known_reports(catalog.get("fused_modulate"), "on") == ()
    both = together("fused_modulate=on", "attn_backend=fa4")
    assert known_reports(both, "on") == known_reports(lever, "fa4")
