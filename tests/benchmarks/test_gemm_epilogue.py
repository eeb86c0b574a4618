"""The benchmark of the products, in its rehearsal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gemm_epilogue, gemm_epilogue_checks, packed_attention
from benchmarks.gemm_epilogue_report import Bench, Report


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    out: Path = tmp_path_factory.mktemp("out") / "lines.json"
    report = gemm_epilogue.run("cpu", rehearse=True, out=out)
    stored = json.loads(out.read_text())
    assert stored["rehearsal"] is True
    assert len(stored["lines"]) == len(report.lines)
    found: list[dict[str, object]] = stored["lines"]
    return found


def test_every_product_is_checked_and_right(lines: list[dict[str, object]]) -> None:
    checked = [line for line in lines if line["part"] == "check" and "verdict" in line]
    assert {line["verdict"] for line in checked} == {"ok"}
    assert len(checked) == 12


def test_every_arm_is_timed_beside_the_one_it_is_held_against(
    lines: list[dict[str, object]],
) -> None:
    mlp = {line["what"]: line for line in lines if line["part"] == "mlp"}
    assert len(mlp) == 6
    assert mlp["fused_mlp_hidden, fp32 gradients"]["gain"] == 1.0
    assert sum(line["part"] == "hidden" for line in lines) == 11


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch comes with the library")
def test_what_cannot_run_is_a_line_that_says_why_and_the_rest_goes_on(
    lines: list[dict[str, object]],
) -> None:
    failed = [line for line in lines if "failed" in line]
    assert [line["part"] for line in failed] == ["gemm"] * 4
    assert all("no libcublasLt is loaded" in str(line["failed"]) for line in failed)
    last = [line["what"] for line in lines[-3:]]
    assert last == ["up: weight alone", "up: column sums after it", "up: BGRADB"]


def test_parts_can_be_asked_for_alone() -> None:
    report = gemm_epilogue.run("cpu", rehearse=True, out=None, only=("bias",))
    assert {line["part"] for line in report.lines} == {"bias"}


def test_a_product_that_is_wrong_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def off(grad: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return (1.1 * (grad @ weight)).to(dtype)

    monkeypatch.setattr(gemm_epilogue_checks.products, "input_grad", off)
    report = Report(None, {})
    bench = Bench("cpu", report, lambda call: 1.0)
    gemm_epilogue_checks.check(bench, 17, 8, 16)
    wrong = [line["what"] for line in report.lines if line.get("verdict") == "WRONG"]
    assert wrong == ["input_grad [0]"]


FOREIGN = (AssertionError("a shape"), AttributeError("no kernel"), ImportError("no package"))


@pytest.mark.parametrize("error", FOREIGN, ids=lambda one: type(one).__name__)
def test_whatever_foreign_code_raises_is_a_line_and_the_others_go_on(error: Exception) -> None:
    report = Report(None, {})

    def fail() -> None:
        raise error

    report.attempt("gemm", "one", "two", fail)
    (line,) = report.lines
    assert line["failed"] == f"{type(error).__name__}: {error}"

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        report.attempt("gemm", "one", "two", interrupted)


def test_an_arm_that_fails_when_it_is_timed_costs_the_others_nothing() -> None:
    report, taken = Report(None, {}), []

    def late() -> None:
        taken.append(1)
        if len(taken) > 3:
            raise AssertionError("the fourth time")

    def clock(call: object) -> float:
        assert callable(call)
        call()
        return 2.0

    arms = {"base": lambda: None, "late": late, "good": lambda: None}
    Bench("cpu", report, clock).compare("hidden", "a case", arms, 8e6, "base")
    found = {line["what"]: line for line in report.lines}
    assert found["late"]["failed"] == "AssertionError: the fourth time"
    assert (found["good"]["us"], found["good"]["gain"]) == (2.0, 1.0)
    assert len(report.lines) == 3


def test_a_clock_that_fails_is_a_line_of_that_comparison() -> None:
    report = Report(None, {})

    def clock(_: object) -> float:
        raise ImportError("no events")

    Bench("cpu", report, clock).compare("hidden", "a case", {"base": lambda: None}, 1.0, "base")
    assert [line["failed"] for line in report.lines] == ["ImportError: no events"]


PROGRAMS = pytest.mark.parametrize(
    "program", [gemm_epilogue, packed_attention], ids=lambda one: one.__name__.split(".")[1]
)


@PROGRAMS
@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("nonsense", "'nonsense' is no device: give cpu, cuda or cuda:N"),
        ("mps", "'mps' is no device: give cpu, cuda or cuda:N"),
        ("cuda:77", "there is no cuda:77: this torch sees"),
    ],
)
def test_a_device_that_is_not_there_is_refused(
    program: Any, typed: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        program.main(["--device", typed])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("typed", ["0", "-3", "many"])
def test_less_than_one_proposal_is_refused(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        gemm_epilogue.main(["--device", "cpu", f"--proposals={typed}"])
    assert stopped.value.code == 2
    assert f"give a whole number of at least 1, not '{typed}'" in capsys.readouterr().err


@PROGRAMS
def test_a_missing_folder_is_made_and_one_that_cannot_be_is_refused(
    program: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(device: str, *given: Any, **named: Any) -> Report:
        report = Report(named.get("out") or given[0], {})
        report.add("order" if program is packed_attention else "bias", "a case", "one", us=1.0)
        return report

    monkeypatch.setattr(program, "run", run)
    monkeypatch.setenv("OUT", str(tmp_path / "new" / "out"))
    only = "order" if program is packed_attention else "bias"
    assert program.main(["--device", "cpu", "--only", only]) == 0
    (written,) = (tmp_path / "new" / "out").iterdir()
    assert json.loads(written.read_text())["lines"]
    monkeypatch.setenv("OUT", str(written))
    with pytest.raises(SystemExit) as stopped:
        program.main(["--device", "cpu", "--only", only])
    assert stopped.value.code == 2
    assert f"the folder OUT={written} cannot be made" in capsys.readouterr().err


def test_a_part_of_which_every_line_failed_is_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OUT", raising=False)

    def broken(*_: object) -> torch.Tensor:
        raise AttributeError("no such product")

    monkeypatch.setattr(gemm_epilogue.products, "weight_grad", broken)
    words = ["--device", "cpu", "--rehearse", "--only", "bias"]
    assert gemm_epilogue.main(words) == 0, "one line is right"
    monkeypatch.setattr(gemm_epilogue.products, "both_grads", broken)
    assert gemm_epilogue.main(words) == 1
    assert "bias: every line failed" in capsys.readouterr().err
