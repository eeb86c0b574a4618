"""The levers that replace one operation of a training step: what all of them must show."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments.workloads.base import DeviceFacts
from experiments.workloads.flow.session import TrainingSession, open_session
from experiments.workloads.flow.workload import SLAT_FLOW, SS_FLOW, FlowWorkload
from levers import (
    fused_affine_norm,
    fused_gate_residual,
    fused_linear_grads,
    fused_mlp_hidden,
    fused_modulate,
    fused_qk_norm_rope,
    fused_residual_norm,
)
from levers.base import OpCase, Settings, Site, engaged
from levers.errors import BadSetting
from levers.kernels.affine_norm import affine_norm
from levers.kernels.gate_residual import gate_residual
from levers.kernels.linear_grads import FusedLinearGrads
from levers.kernels.mlp_hidden import FusedMlpHidden
from levers.kernels.modulate import modulate
from levers.kernels.qk_norm_rope import qk_norm_rope
from levers.kernels.residual_norm import residual_norm
from levers.lint import SampleFacts, complaints
from levers.policy import ParityClass

SUM_NOISE = 3e-7
"""Relative error of an fp32 sum that is as good as its order of summation."""

TINY = {"depth": "2", "bs": "2", "steps": "1", "threads": "1"}
SMALL = {
    "slat_flow": {**TINY, "tokens": "20", "cap": "40", "profile": "uniform"},
    "ss_flow": {**TINY, "grid": "3"},
}

WIDE = {"depth": "2", "bs": "4", "threads": "1"}
"""Samples long enough that the sums over their rows show their roundings."""

ROW_PARTS = (
    *("forward lengths 1 ", "backward lengths ragged", "mean/sigma 1.0", "odd width"),
    *("backward cancelling", "backward subnormal", "backward large mean"),
    *("backward constant rows", "backward float16", "backward float32"),
)


def quarter_ulp(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps / 4


def sum_noise(dtype: torch.dtype) -> float:
    return SUM_NOISE


@dataclass(frozen=True)
class Expected:
    """What one lever must show.

    Attributes:
        module: of the lever.
        put: what it puts in its site: the very operation, or the class of it.
        node: the autograd node that its witness names, and how often two blocks run it.
        parts: what the names of its op cases must hold.
        wild: how many of them hold NaN or Inf.
        floor: relative error that is right whatever the reference's, by the output's dtype.
        gradients: factor by which the step's gradients may be further from fp64; None where the
            lever's own test holds them to the bit, or its one output is an op case.
        judged: whether its op cases are held against fp64 here.
    """

    module: ModuleType
    put: Any
    node: str
    parts: tuple[str, ...]
    wild: int
    floor: Callable[[torch.dtype], float] = quarter_ulp
    gradients: float | None = 1.05
    judged: bool = True

    @property
    def lever(self) -> Any:
        return self.module.LEVER

    @property
    def site(self) -> str:
        return str(self.module.SITE)

    @property
    def cases(self) -> tuple[OpCase, ...]:
        return tuple(self.lever.op_cases("on", "cpu"))


EXPECTED = (
    Expected(fused_modulate, modulate, "FusedModulateBackward x 4", ROW_PARTS, 2),
    Expected(fused_affine_norm, affine_norm, "FusedAffineNormBackward x 2", ROW_PARTS, 2),
    Expected(fused_gate_residual, gate_residual, "FusedGateResidualBackward x 4", ROW_PARTS, 2),
    Expected(
        fused_residual_norm,
        residual_norm,
        "FusedResidualNormBackward x 5",
        (*ROW_PARTS, "(gated, affine)", "(modulated)", "(gated, modulated)", "sum, large mean"),
        wild=6,
        judged=False,
    ),
    Expected(
        fused_qk_norm_rope,
        qk_norm_rope,
        "FusedQkNormRopeBackward x 4",
        ("cross", "ragged", "not turned", "float16", "float32", "NaN and Inf", "zero rows"),
        wild=1,
        floor=sum_noise,
        gradients=1.1,
    ),
    Expected(
        fused_mlp_hidden,
        FusedMlpHidden,
        "GeluAndBiasGradBackward x 2",
        ("1 rows", "2222", "float16", "float32", "both tails", "mean", "NaN", "Inf"),
        wild=2,
        floor=sum_noise,
        gradients=None,
    ),
    Expected(
        fused_linear_grads,
        FusedLinearGrads,
        "FusedLinearBackward x 14",
        (
            *("wide", "narrow", "one row", "33 to 57", "float16", "fp32 rows", "fp32 products"),
            *("frozen weight", "without a gradient", "large means", "cancelling", "NaN"),
        ),
        wild=1,
        gradients=None,
        judged=False,
    ),
)
each = pytest.mark.parametrize("of", EXPECTED, ids=[one.lever.name for one in EXPECTED])
CASES = [(one, case) for one in EXPECTED if one.judged for case in one.cases]


def facts(of: Expected, device: str = "cpu", *, there: bool = True) -> SampleFacts:
    sites = (of.site,) if there else ()
    return SampleFacts(device_type=device, workload="slat_flow", sites=sites)


def session(workload: FlowWorkload, changes: dict[str, str]) -> TrainingSession:
    parameters = workload.resolve(changes, DeviceFacts("cpu", "test cpu", 8 << 30))
    found = open_session(parameters, "cpu", 3, "engine")
    assert isinstance(found, TrainingSession)
    return found


@each
def test_it_is_acceptable_as_a_lever_of_one_setting(of: Expected) -> None:
    assert complaints(of.lever) == ()
    assert of.lever.env == f"LEVER_{of.lever.name.upper()}"
    assert of.lever.settings == Settings(("off", "on"))
    with pytest.raises(BadSetting, match=r"off \| on"):
        of.lever.settings.check(of.lever.name, "auto")


@each
def test_it_claims_lossless_and_memory_guards_on_cuda_alone(of: Expected) -> None:
    assert of.lever.policy(facts(of)).guard_for("memory/peak_bytes") is None
    guard = of.lever.policy(facts(of, "cuda")).guard_for("memory/peak_bytes")
    assert guard is not None
    assert guard.margin == 0.01
    assert of.lever.policy(facts(of, "cuda")).claims is ParityClass.LOSSLESS


@each
def test_a_workload_without_the_site_is_unmet_and_so_is_cuda_without_triton(
    of: Expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert of.lever.unmet(facts(of, "cuda"), "on") == ()
    assert of.site in of.lever.unmet(facts(of, there=False), "on")[0]
    assert of.lever.unmet(facts(of, there=False), "off") == ()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "triton" in of.lever.unmet(facts(of, "cuda"), "on")[0]
    assert of.lever.unmet(facts(of), "on") == ()


@each
def test_it_swaps_the_callable_and_puts_back_what_it_found(of: Expected) -> None:
    def found() -> None: ...

    site = Site(of.site, found)
    with engaged(of.lever, {of.site: site}, "on"):
        is_class = isinstance(of.put, type)
        assert isinstance(site.launch, of.put) if is_class else site.launch is of.put
    assert site.launch is found


@each
@pytest.mark.parametrize("workload", [SLAT_FLOW, SS_FLOW], ids=lambda one: str(one.name))
def test_the_witness_names_its_own_backward_in_every_block(
    of: Expected, workload: FlowWorkload
) -> None:
    plans = {}
    for setting in ("off", "on"):
        one = session(workload, SMALL[workload.name])
        with engaged(of.lever, one.sites, setting):
            one.exercise()
            plans[setting] = of.lever.witness(one.sites[of.site])["train/tok_s"]
    assert plans["on"] == f"backward={of.node}"
    assert of.node.split()[0] not in plans["off"]


def gradient_errors(one: TrainingSession) -> dict[str, float]:
    """Of each parameter's gradient, relative to fp64."""
    found = one.outputs({"want": "gradients"}).gradients
    return {g.parameter: g.relative_error for g in found}


@functools.cache
def originals() -> dict[str, float]:
    """Without any lever: the same for all of them, and seconds of work."""
    return gradient_errors(session(SLAT_FLOW, WIDE))


@pytest.mark.parametrize(
    "of",
    [one for one in EXPECTED if one.gradients is not None],
    ids=lambda one: str(one.lever.name),
)
def test_no_gradient_of_the_step_moves_away_from_fp64(of: Expected) -> None:
    assert of.gradients is not None
    one = session(SLAT_FLOW, WIDE)
    with engaged(of.lever, one.sites, "on"):
        errors = gradient_errors(one)
    assert errors.keys() == originals().keys()
    for name, error in errors.items():
        assert error <= of.gradients * originals()[name] + 2.0**-9, name


def relative(found: Tensor, truth: Tensor, keep: Tensor) -> float:
    scale = truth[keep].norm().clamp(min=1e-300)
    return float((found.double() - truth)[keep].norm() / scale)


@pytest.mark.parametrize(
    ("of", "case"), CASES, ids=[f"{one.lever.name}-{case.name}" for one, case in CASES]
)
def test_no_case_is_further_from_fp64_than_the_reference(of: Expected, case: OpCase) -> None:
    inputs = case.inputs(0)
    reference, candidate = case.outputs(inputs), case.outputs(inputs)
    case.reference(inputs, reference)
    case.candidate(inputs, candidate)
    truths = case.truth(inputs)
    masks = case.masks(inputs) if case.masks else [torch.zeros_like(t).bool() for t in truths]
    for ref, cand, truth, wild in zip(reference, candidate, truths, masks, strict=True):
        assert torch.equal(~torch.isfinite(cand), wild)
        bound = max(1.05 * relative(ref, truth, ~wild), of.floor(cand.dtype))
        assert relative(cand, truth, ~wild) <= bound


@each
def test_the_cases_cover_both_directions_shapes_dtypes_and_wild_values(of: Expected) -> None:
    names = " | ".join(case.name for case in of.cases)
    for part in of.parts:
        assert part in names
    assert sum(case.masks is not None for case in of.cases) == of.wild
