"""How the cap's cases are put together; the libraries themselves run in tests/gpu."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from levers.base import OpCase
from levers.errors import BadParameter
from levers.kernels import split_kv_cap_cases, split_kv_cases


@pytest.fixture
def on_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA device by name, with both libraries installed; nothing is run on it."""
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(split_kv_cap_cases, "missing_package", lambda backend: ())


def backends(cases: list[OpCase]) -> list[str]:
    words = [case.name.partition(",")[0] for case in cases]
    return sorted({word if word in ("fa2", "fa3") else "triton" for word in words})


def test_on_a_cpu_the_cases_are_those_of_our_own_kernel() -> None:
    ours = [case.name for case in split_kv_cases.op_cases("auto", "cpu")]
    assert [case.name for case in split_kv_cap_cases.op_cases("auto", "cpu")] == ours


def test_on_cuda_each_library_that_is_there_has_cases(on_h200: None) -> None:
    cases = list(split_kv_cap_cases.op_cases("auto", "cuda"))
    assert len({case.name for case in cases}) == len(cases)
    assert backends(cases) == ["fa2", "fa3", "triton"]
    text = " ".join(case.name for case in cases if case.name.startswith("fa"))
    for word in ("2 q heads", "4 q heads", "ragged", "cap-long", "pages", "contiguous"):
        assert word in text


def test_tuned_has_cases_of_the_backends_that_were_measured(
    on_h200: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_kv_cap_cases, "has_table", lambda name, backend: backend == "fa2")
    assert backends(list(split_kv_cap_cases.op_cases("tuned", "cuda"))) == ["fa2"]


def test_tuned_without_any_table_is_an_error_with_its_cure(
    on_h200: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA L4")
    with pytest.raises(BadParameter, match="on NVIDIA L4"):
        split_kv_cap_cases.op_cases("tuned", "cuda")


def test_fa3_has_no_cases_on_another_generation(
    on_h200: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (10, 0))
    assert backends(list(split_kv_cap_cases.op_cases("3", "cuda"))) == ["fa2", "triton"]
