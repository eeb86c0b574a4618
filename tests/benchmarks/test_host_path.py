"""The benchmark of a product's host path: both forms ask the library for the same work."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import host_path
from levers.kernels import cublaslt_ops
from levers.kernels.cublaslt_abi import SUCCESS

OUT, RESULT = 8, 10
"""Arguments of a product that are fresh memory at each call."""


class Noted:
    """A function of the library that notes what it was called with."""

    def __init__(self, name: str, calls: list[tuple[str, Any]]) -> None:
        self.name, self.calls = name, calls

    def __call__(self, *arguments: Any) -> int:
        seen = [getattr(getattr(one, "_obj", one), "value", one) for one in arguments]
        if self.name == "cublasLtMatmul":
            seen[OUT] = seen[RESULT] = "fresh"
            seen[12] = bytes(arguments[12]._obj)
        self.calls.append((self.name, seen))
        return SUCCESS


def test_each_product_is_faster_than_it_was() -> None:
    rows = host_path.measured(turns=8, calls=20)
    assert [row["product"] for row in rows] == ["linear", "linear_gelu", "weight_grad"]
    for row in rows:
        assert 0 < row["now"] < row["before"]
        assert row["ratio"] == pytest.approx(row["before"] / row["now"])


@pytest.mark.parametrize("product", ["linear", "linear_gelu", "weight_grad"])
def test_both_forms_hand_the_library_the_same(
    product: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, Any]] = []
    idle = host_path.IdleLibrary()
    for name in host_path.HOT:
        idle.functions[name] = Noted(name, calls)
    monkeypatch.setattr(host_path, "IdleLibrary", lambda: idle)
    given = host_path.arguments()[product]
    with host_path.without_device() as lt, host_path.operators(host_path.Before(lt)) as before:
        seen = []
        for call in (before[product], getattr(cublaslt_ops, product)):
            call(*given)
            calls.clear()
            call(*given)
            seen.append([(name, _but_scratch(name, found)) for name, found in calls])
    assert seen[0] == seen[1]
    assert [name for name, _ in seen[0]][-1] == "cublasLtMatmul"


def _but_scratch(name: str, found: list[Any]) -> list[Any]:
    """Without addresses of fresh memory: the workspace, and what GELU's input is written to."""
    if name == "cublasLtMatmul":
        return [*found[:13], "workspace", *found[14:]]
    return found if found[1] == host_path.Operation.BIAS_POINTER.number else found[:2]
