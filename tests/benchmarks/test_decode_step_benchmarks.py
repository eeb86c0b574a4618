"""The rehearsal of the products' sweep, and what the step's benchmark reads from it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import decode_gemv, decode_steps
from levers.kernels.gemv_tilings import Tiling, tiling


def row(rows: int, us: float, cut: Tiling, gated: bool = False) -> dict[str, object]:
    return {
        "rows": rows,
        "outputs": 1024,
        "inputs": 3072,
        "gated": gated,
        "us": us,
        "cut": {field: getattr(cut, field) for field in Tiling.__dataclass_fields__},
    }


def test_a_rehearsal_times_every_product_and_names_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "gemv.json"
    arguments = ["--device", "cpu", "--models", "rehearsal", "--rows", "1,3", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["decode_gemv", *arguments])
    assert decode_gemv.main() == 0
    rows = json.loads(out.read_text())["rows"]
    assert {(one["matrix"], one["rows"]) for one in rows} == {
        (matrix, count) for matrix in ("qkv", "gate_up") for count in (1, 3)
    }
    assert all(one["us"] > 0 for one in rows)
    shown = capsys.readouterr().out
    assert shown.count("best") == 4
    assert "N=1: (64, 64, True): Tiling(" in shown


def test_the_step_takes_the_fastest_cut_of_the_nearest_rows(tmp_path: Path) -> None:
    slow, fast, many = Tiling(4, 512), Tiling(8, 512), Tiling(32, 128, splits=4)
    path = tmp_path / "gemv.json"
    measured = [row(1, 5.0, slow), row(1, 4.0, fast), row(8, 6.0, many)]
    path.write_text(json.dumps({"rows": [*measured, {"rows": 1, "tiling": "torch", "us": 1.0}]}))
    choose = decode_steps.swept(path)
    shape = (1024, 3072)
    assert choose(1, *shape, swiglu=False, norm=False) == fast
    assert choose(2, *shape, swiglu=False, norm=False) == many
    assert choose(8, *shape, swiglu=False, norm=True) == replace(many, splits=1)
    assert choose(9, *shape, swiglu=False, norm=False) == tiling(
        9, *shape, swiglu=False, norm=False
    )
    assert choose(1, 640, 64, swiglu=True, norm=False) == tiling(
        1, 640, 64, swiglu=True, norm=False
    )


def test_sets_of_levers_are_read_from_text() -> None:
    assert decode_steps.settings("none") == []
    assert decode_steps.settings("fused_chain=on,fused_block=early") == [
        ("fused_chain", "on"),
        ("fused_block", "early"),
    ]
