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
    assert other["parted"][1] >= other["truth_left_by_candidate"] > 0
    assert (other["truth_left_by_reference"], other["ratio"]) == (0, None)
    assert "mxfp4_weights=on" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--set", "foo"), "'foo' is no name and value, such as prompt_tokens=512"),
        (("--prompts", "0"), "'0' is no number of 1 or more"),
        (("--alone", "none"), "'none' is no number of 1 or more"),
        (("--out", "missing/found.json"), "the folder missing is not there"),
    ],
)
def test_wrong_input_is_answered_in_a_line_before_anything_is_decoded(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        token_truth.main(["--levers", "fused_block=early", *words])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
