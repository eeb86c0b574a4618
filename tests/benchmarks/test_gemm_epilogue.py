"""The benchmark of the products, in its rehearsal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import gemm_epilogue, gemm_epilogue_checks
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
