from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks import arguments, several_gpus


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--set", "foo"), "'foo' is no name and value, such as prompt_tokens=512"),
        (("--ranks", "0"), "'0' is no number of 1 or more"),
        (("--bs", "8", "0"), "'0' is no number of 1 or more"),
        (("--workload", "decode"), "invalid choice: 'decode' (choose from"),
    ],
)
def test_what_is_typed_wrong_is_answered_in_a_line(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        several_gpus.parsed([*words, "--no-ab"])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_setting_may_hold_more_than_one_sign() -> None:
    assert arguments.assignment("path=a=b") == ("path", "a=b")


def test_a_machine_without_the_device_is_said_without_a_traceback() -> None:
    words = ["-m", "benchmarks.token_truth", "--levers", "fused_block=early", "--device", "cuda:99"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("token_truth: no device 'cuda:99' on this machine")
    assert done.stderr.count("\n") == 1
