from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks import mxfp4_gemv
from benchmarks.mxfp4_products import LARGEST_ERROR, Product
from benchmarks.mxfp4_variants import best_of, module_text
from levers.kernels.mxfp4_plans import Plan


def test_the_benchmark_rehearses_on_a_cpu_and_writes_what_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "found.json"
    words = ["--device", "cpu", "--rows", "1,3", "--repeats", "1", "--out", str(out)]
    assert mxfp4_gemv.main(words) == 0
    lines = json.loads(out.read_text())["lines"]
    assert [(one["matrix"], one["rows"]) for one in lines] == [
        ("qkv", 1),
        ("qkv", 3),
        ("down", 1),
        ("down", 3),
    ]
    for one in lines:
        assert one["ratio"] == pytest.approx(one["bf16_us"] / one["mxfp4_us"])
        assert one["read_bytes"] == 512 * 128 * 17 // 32 + 4 * one["rows"] * (
            128 if one["matrix"] == "qkv" else 512
        )
    assert capsys.readouterr().out.count("dequantised") == 4


def test_every_cut_is_timed_and_checked_and_the_best_make_a_module(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, module = tmp_path / "found.json", tmp_path / "plans.py"
    words = ["--variants", "--device", "cpu", "--rows", "1,8", "--repeats", "1"]
    assert mxfp4_gemv.main([*words, "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    assert len({(row["matrix"], row["rows"]) for row in report["rows"]}) == 4
    assert all(row["error"] < 1e-5 for row in report["rows"])
    assert mxfp4_gemv.main(["--write", str(out), "--module", str(module)]) == 0
    space: dict[str, Any] = {}
    exec(module.read_text(), space)
    assert set(space["PLANS"]) == {
        (outputs, inputs, False, rows)
        for outputs, inputs in ((512, 128), (128, 512))
        for rows in (1, 8)
    }
    assert {row["plan"]["early"] for row in report["rows"]} == {"", "start", "end"}
    assert capsys.readouterr().out.count("best") == 8


def row(plan: Plan, us: float, error: float = 0.0) -> dict[str, Any]:
    cut = asdict(plan)
    shape = {"model": "4b", "matrix": "o", "rows": 1, "outputs": 2560, "inputs": 4096}
    return {**shape, "gate": False, "plan": cut, "name": str(plan), "us": us, "error": error}


def test_the_fastest_right_cut_is_taken_and_the_own_one_where_it_is_as_fast() -> None:
    own, other, wrong = Plan(1, 8), Plan(2, 8, 3, "end"), Plan(4, 4)
    rows = [row(own, 4.0), row(other, 3.0), row(wrong, 1.0, 2 * LARGEST_ERROR)]
    found = best_of(rows)
    assert found is not None
    assert found["name"] == str(other)
    assert best_of([row(own, 3.02), row(other, 3.0)]) == row(own, 3.02)
    assert best_of([row(wrong, 1.0, float("nan"))]) is None
    text = module_text({"device": "a device", "torch": "2", "triton": "3", "rows": rows})
    assert '(2560, 4096, False, 1): Plan(2, 8, 3, "end"),  # 3.00, 4.00' in text


def test_figures_of_an_earlier_kernel_make_no_table() -> None:
    old = row(Plan(1, 8), 4.0)
    del old["plan"]["depth"]
    with pytest.raises(SystemExit, match="another form"):
        module_text({"device": "a device", "torch": "2", "triton": "3", "rows": [old]})


@pytest.mark.parametrize("rows", [1, 8, 32])
def test_the_cuts_of_a_product_are_the_rules_first_and_no_two_alike(rows: int) -> None:
    for shape in mxfp4_gemv.MODELS["4b"].items():
        product = Product("4b", shape[0], rows, *shape[1])
        plans = product.plans()
        assert plans[0] == product.own()
        assert len(set(plans)) == len(plans) >= 3
