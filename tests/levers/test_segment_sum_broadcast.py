"""The lever: declaration, policy by device, hooks, witness, and its op cases."""

from __future__ import annotations

import pytest
import torch

from levers.base import Settings, Site, engaged
from levers.errors import BadSetting
from levers.kernels.segment_sum import broadcast
from levers.lint import SampleFacts, complaints
from levers.policy import ParityClass
from levers.segment_sum_broadcast import LEVER, SITE

CASES = LEVER.op_cases("on", "cpu")


def facts(device: str = "cpu", sites: tuple[str, ...] = (SITE,)) -> SampleFacts:
    return SampleFacts(device_type=device, workload="slat_flow", sites=sites)


def relative(found: torch.Tensor, truth: torch.Tensor, keep: torch.Tensor) -> float:
    gap = (found.double() - truth)[keep].norm()
    return float(gap / truth[keep].norm())


def test_it_is_acceptable_as_a_lever() -> None:
    assert complaints(LEVER) == ()
    assert LEVER.env == "LEVER_SEGMENT_SUM_BROADCAST"
    assert LEVER.settings == Settings(("off", "on"))


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(BadSetting, match=r"off \| on"):
        LEVER.settings.check(LEVER.name, "auto")


def test_memory_guards_on_cuda_and_not_on_a_cpu() -> None:
    assert LEVER.policy(facts()).guard_for("memory/peak_bytes") is None
    guard = LEVER.policy(facts("cuda")).guard_for("memory/peak_bytes")
    assert guard is not None
    assert guard.margin == 0.01
    assert LEVER.policy(facts()).primary_margin == 0.03
    assert LEVER.policy(facts("cuda")).claims is ParityClass.LOSSLESS


def test_a_workload_without_the_site_is_unmet() -> None:
    assert LEVER.unmet(facts(), "on") == ()
    assert SITE in LEVER.unmet(facts(sites=()), "on")[0]
    assert LEVER.unmet(facts(sites=()), "off") == ()


def test_missing_triton_is_unmet_on_cuda_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "triton" in LEVER.unmet(facts("cuda"), "on")[0]
    assert LEVER.unmet(facts("cpu"), "on") == ()


def test_it_swaps_the_callable_and_puts_back_what_it_found() -> None:
    def found(mod: object, layout: object) -> None: ...

    site = Site(SITE, found)
    with engaged(LEVER, {SITE: site}, "on"):
        assert site.launch is broadcast
    assert site.launch is found


def test_the_witness_names_the_backward_and_its_count() -> None:
    site = Site(SITE, broadcast)
    for _ in range(3):
        site.observe("train/tok_s", "backward=Index")
    assert LEVER.witness(site) == {"train/tok_s": "backward=Index x 3"}


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_no_case_is_further_from_fp64_than_the_reference(case: object) -> None:
    inputs = case.inputs(0)  # type: ignore[attr-defined]
    reference, candidate = case.outputs(inputs), case.outputs(inputs)  # type: ignore[attr-defined]
    case.reference(inputs, reference)  # type: ignore[attr-defined]
    case.candidate(inputs, candidate)  # type: ignore[attr-defined]
    (truth,) = case.truth(inputs)  # type: ignore[attr-defined]
    wild = case.masks(inputs)[0] if case.masks else torch.zeros_like(truth, dtype=torch.bool)  # type: ignore[attr-defined]
    assert torch.equal(~torch.isfinite(candidate[0]), wild)
    keep = ~wild
    assert relative(candidate[0], truth, keep) <= 1.05 * relative(reference[0], truth, keep)


def test_the_cases_cover_lengths_means_and_wild_values() -> None:
    names = " | ".join(case.name for case in CASES)
    for part in ("lengths 1,", "512", "2222", "8192", "skewed", "mean/sigma 1.0", "NaN and Inf"):
        assert part in names
    assert sum(case.masks is not None for case in CASES) == 1
