from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import mxfp4_gemv


def test_the_benchmark_rehearses_on_a_cpu_and_writes_what_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "found.json"
    words = ["--device", "cpu", "--rows", "1,3", "--repeats", "1", "--out", str(out)]
    mxfp4_gemv.main(words)
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
