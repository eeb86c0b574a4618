"""The names of the oracles, and the mode in which each must run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

import pytest

from experiments.prepare import oracle_of
from experiments.values import Scalar
from experiments.workloads.base import DeviceFacts
from experiments.workloads.decode import opening
from experiments.workloads.decode.oracle_names import parsed_oracle, transformers_mode, users_mode
from experiments.workloads.decode.workload import DECODE
from levers.errors import BadParameter, UnknownName

CPU = DeviceFacts("cpu", "some CPU", 2**34)
H200 = DeviceFacts("cuda:0", "NVIDIA H200", 141 * 10**9, sm_count=132)


def test_sdpa_is_the_default_and_each_name_is_taken_whole() -> None:
    assert oracle_of(DECODE, None) == "sdpa"
    assert oracle_of(DECODE, "transformers") == "transformers"
    assert oracle_of(DECODE, "transformers:1,8") == "transformers:1,8"


@pytest.mark.parametrize("text", ["vllm", "sdpa:1", "server"])
def test_an_unknown_oracle_is_named(text: str) -> None:
    with pytest.raises(UnknownName, match=f"no oracle '{text}'"):
        oracle_of(DECODE, text)


@pytest.mark.parametrize("text", ["", "sdpa:1", "server:", "vllm"])
def test_a_name_that_no_oracle_has_is_not_parsed(text: str) -> None:
    with pytest.raises(UnknownName, match="no oracle"):
        parsed_oracle(text)


def test_an_oracle_may_be_measured_at_some_concurrencies() -> None:
    assert parsed_oracle("transformers").concurrency((1, 2, 4)) == (1, 2, 4)
    assert parsed_oracle("transformers:4,1").concurrency((1, 2, 4)) == (1, 4)
    with pytest.raises(BadParameter, match="concurrency 8 is not measured"):
        parsed_oracle("transformers:1,8").concurrency((1, 2, 4))
    with pytest.raises(BadParameter, match="use a list"):
        parsed_oracle("transformers:many")


def test_a_concurrency_that_is_not_measured_is_refused_before_anything_runs() -> None:
    parameters = DECODE.resolve({"concurrency": "1,2"}, CPU)
    with pytest.raises(BadParameter, match="concurrency 8 is not measured"):
        DECODE.targets(parameters, "transformers:8")
    axes = [target.axis for target in DECODE.targets(parameters, "transformers:1")]
    assert axes == ["decode/tok_s/c1", "decode/tok_s/c2"]


@pytest.mark.parametrize(
    ("argument", "words"),
    [("https://host:1", "encryption"), ("vllm serve model", "neither an address nor a command")],
)
def test_a_server_that_cannot_be_used_is_refused(argument: str, words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        parsed_oracle(f"server:{argument}")


def test_a_server_is_named_by_its_address_or_its_command() -> None:
    assert parsed_oracle("server:http://127.0.0.1:8000").is_url
    assert not parsed_oracle("server:vllm serve m --port {port}").is_url


def test_the_users_of_transformers_compile_and_capture_where_cuda_is() -> None:
    on_cpu, on_cuda = DECODE.resolve({}, CPU), DECODE.resolve({}, H200)
    assert users_mode(on_cpu, "transformers") == transformers_mode(False) == "eager-transformers"
    assert users_mode(on_cuda, "transformers:1,8") == "captured-compiled-transformers"
    assert transformers_mode(True, compiled=False) == "captured-transformers"
    eager = DECODE.resolve({"graph": "off"}, H200)
    assert users_mode(eager, "transformers") == "captured-compiled-transformers"
    assert users_mode(on_cpu, "server:http://h") == "served"


def test_sdpa_is_captured_on_cuda_even_where_the_arms_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[Mapping[str, Scalar], str]] = []
    monkeypatch.setattr(opening, "open_session", lambda p, d, s, i: asked.append((p, i)))
    eager = DECODE.resolve({"graph": "off"}, H200)
    for implementation in ("oracle:sdpa", "engine"):
        opening.open_implementation(eager, "cuda:0", 1, implementation)
    opening.open_implementation(DECODE.resolve({}, CPU), "cpu", 1, "oracle:sdpa")
    assert [(one["graph"], name) for one, name in asked] == [
        ("on", "oracle:sdpa"),
        ("off", "engine"),
        ("off", "oracle:sdpa"),
    ]
    assert users_mode(eager, "sdpa") == "captured-sdpa"
    assert users_mode(DECODE.resolve({}, CPU), "sdpa") == "eager-sdpa"


def test_naming_an_oracle_needs_neither_torch_nor_transformers() -> None:
    code = (
        "import sys\n"
        "from experiments.workloads.decode.oracle_names import parsed_oracle\n"
        "parsed_oracle('transformers:1')\n"
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
