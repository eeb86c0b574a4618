from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import token_truth

SHORT = ("--prompts", "6", "--concurrency", "3", "--alone", "4")
LENGTHS = ("prompt_tokens=48", "output_tokens=24", "ttft_tokens=16")


def test_it_counts_what_parts_and_what_leaves_fp64(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [word for one in LENGTHS for word in ("--set", one)]
    out = tmp_path / "found.json"
    levers = ("--levers", "qk_norm_rope=on", "--levers", "mxfp4_weights=on")
    token_truth.main([*SHORT, *sets, *levers, "--device", "cpu", "--out", str(out)])
    same, other = json.loads(out.read_text())["rows"]
    assert (same["streams"], same["parted"], same["truth_left_by_candidate"]) == (12, [0, 0], 0)
    assert sum(other["parted"]) >= other["truth_left_by_candidate"] > 0
    assert other["truth_left_by_reference"] == 0
    assert "mxfp4_weights=on" in capsys.readouterr().out
