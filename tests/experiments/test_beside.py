"""Levers that are asked for in both arms: ``ab --with``."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import beside, environment, prepare, run_setup
from experiments.prepare import Comparison
from experiments.registry.store import Registry
from experiments.requests import AbRequest, SilentListener
from experiments.spec import LeverSetting
from levers.errors import LeverConflict, UsageError


def of(lever: str, workload: str = "slat_flow") -> Comparison:
    request = AbRequest(lever, cand=None, workload=workload, oracle="none")
    return prepare.compare(request, environment.find_device("cpu"))


def test_they_are_the_stack_of_the_comparison_in_their_order(tmp_path: Path) -> None:
    texts = ("fused_modulate", "segment_sum_broadcast=on")
    with Registry.open(tmp_path / "registry.db") as registry:
        listener = SilentListener()
        found = run_setup.stack_for(registry, of("fused_gate_residual"), listener, texts)
        assert run_setup.stack_for(registry, of("fused_gate_residual"), listener) == ()
    assert list(map(str, found)) == ["fused_modulate=on", "segment_sum_broadcast=on"]
    request = AbRequest("fused_gate_residual", workload="slat_flow", oracle="none")
    spec = prepare.compare(request, environment.find_device("cpu"), found).spec
    assert spec.stack == found


def test_one_goes_before_the_same_lever_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class On:
        left_out = (("tuned_gemm=on", "stale"), ("fused_modulate=on", "stale"))
        settings = tuple(
            LeverSetting(lever=name, setting="on") for name in ("tuned_gemm", "fused_modulate")
        )

    said: list[str] = []
    listener = SilentListener()
    monkeypatch.setattr(listener, "on_warning", said.append)
    monkeypatch.setattr(Registry, "default_on_set", lambda *_: On())
    with Registry.open(tmp_path / "registry.db") as registry:
        found = run_setup.stack_for(
            registry, of("fused_gate_residual"), listener, ["tuned_gemm=narrow"]
        )
    assert list(map(str, found)) == ["tuned_gemm=narrow", "fused_modulate=on"]
    assert said == ["fused_modulate=on is not in the stack: stale"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fused_modulate=on", "fused_modulate is the lever under test"),
        ("segment_sum_broadcast=off", "adds nothing to a stack; leave it out of --with"),
        ("segment_sum_broadcast=maybe", "has no setting 'maybe'"),
        ("attn_backend", "'attn_backend' has no setting; write attn_backend=SETTING, of off | fa2"),
        ("segment_sum_broadcast=", "has no setting; write segment_sum_broadcast=SETTING"),
        ("nothing=on", "no lever 'nothing'"),
        ("fa2_nsplits_cap=auto", "has no site in workload 'slat_flow'"),
        ("attn_backend=fa4", "fa4 has kernels for CUDA alone"),
    ],
)
def test_what_cannot_stand_beside_it_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        beside.asked([text], of("fused_modulate"))


def test_a_shared_site_must_be_declared() -> None:
    with pytest.raises(LeverConflict, match=r"both change flow\.linear"):
        beside.asked(["fp8_linear=e4m3"], of("fused_linear_grads"))
    with pytest.raises(LeverConflict, match=r"both change flow\.linear"):
        beside.asked(["fp8_linear=e4m3", "tuned_gemm=on"], of("fused_modulate"))
