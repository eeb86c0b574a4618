"""The benchmark of the fused residual and norm in its rehearsal, interpreted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch


def test_each_form_is_timed_apart_as_shipped_and_under_another_cut(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    if torch.cuda.is_available():
        pytest.skip("nothing is interpreted where a device is")
    from benchmarks import residual_norm

    out = tmp_path / "residual_norm.json"
    residual_norm.run("cpu", rehearse=True, out=out)
    rows = json.loads(out.read_text())["rows"]
    assert len(rows) == 3 * 2 * 3
    shipped = [row for row in rows if row["shipped"]]
    assert {row["what"] for row in shipped if row["direction"] == "forward"} == {
        f"rows {residual_norm.FORWARD.rows} elements {residual_norm.FORWARD.elements}"
    }
    assert len(shipped) == 6
    assert {row["of_apart"] for row in rows if row["what"] == "apart"} == {1.0}
