"""The lever of the 8-bit Linears: declaration, tolerance, hooks, witness, and its op cases."""

from __future__ import annotations

import pytest
import torch

from experiments.parity.gradients import tolerance_of
from experiments.parity.op_case import check_case
from experiments.parity.op_judge import Bar
from experiments.workloads.base import DeviceFacts
from experiments.workloads.flow.session import TrainingSession, open_session
from experiments.workloads.flow.workload import SLAT_FLOW
from levers.base import OFF, Site, engaged
from levers.fp8_linear import LEVER, SITE, TOLERANCE
from levers.kernels.fp8_linear import Fp8Product
from levers.lint import SampleFacts, complaints
from levers.policy import ParityClass

CASES = [case for setting in ("e4m3", "e5m2") for case in LEVER.op_cases(setting, "cpu")]
TINY = {"depth": "2", "bs": "3", "tokens": "32", "cap": "96", "cond_tokens": "8"}


def session() -> TrainingSession:
    parameters = SLAT_FLOW.resolve(TINY, DeviceFacts("cpu", "test cpu", 8 << 30))
    found = open_session(parameters, "cpu", 1, "engine")
    assert isinstance(found, TrainingSession)
    return found


def test_it_is_acceptable_as_a_lever_that_claims_tolerated() -> None:
    assert complaints(LEVER) == ()
    assert LEVER.settings.names == ("off", "e4m3", "e5m2")
    policy = LEVER.policy(SampleFacts("cuda", "slat_flow"))
    assert policy.claims is ParityClass.TOLERATED
    assert policy.tolerance is TOLERANCE
    assert tolerance_of(policy) == 0.1
    assert policy.guard_for("memory/peak_bytes") is not None


def test_missing_site_and_missing_triton_are_unmet(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cuda = (SampleFacts(device, "slat_flow", sites=(SITE,)) for device in ("cpu", "cuda"))
    assert LEVER.unmet(cpu, "e4m3") == ()
    assert SITE in LEVER.unmet(SampleFacts("cpu", "slat_flow"), "e4m3")[0]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "triton" in LEVER.unmet(cuda, "e5m2")[0]
    assert LEVER.unmet(cuda, OFF) == ()


def test_it_wraps_the_callable_and_puts_back_what_it_found() -> None:
    def found(x: object, weight: object, bias: object) -> None: ...

    site = Site(SITE, found)
    with engaged(LEVER, {SITE: site}, "e5m2"):
        assert isinstance(site.launch, Fp8Product)
        assert site.launch.found is found
        assert site.launch.gradients == torch.float8_e5m2
    assert site.launch is found


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_every_case_is_tolerated_and_has_power(case) -> None:  # type: ignore[no-untyped-def]
    result = check_case(case, 0, Bar(tolerance=TOLERANCE.relative_error))
    assert result.status == "passed", result.fault
    assert result.parity is ParityClass.TOLERATED
    assert result.powerless == ()


def test_no_case_is_lossless_or_would_pass_without_the_tolerance() -> None:
    assert check_case(CASES[0], 0, Bar()).status == "failed"


def test_a_step_runs_every_linear_of_its_blocks_in_8_bits_and_moves_the_loss_little() -> None:
    losses, plans = {}, {}
    for setting in (OFF, "e4m3"):
        one = session()
        with engaged(LEVER, one.sites, setting):
            losses[setting] = float(one.step().run())
            one.exercise()
            plans[setting] = LEVER.witness(one.sites[SITE])["train/tok_s"]
        gradients = [p.grad for p in one.step().model.parameters()]
        assert all(grad is not None and torch.isfinite(grad).all() for grad in gradients)
    assert plans["e4m3"] == "backward=Fp8LinearBackward x 14"
    assert plans[OFF] != plans["e4m3"]
    assert losses["e4m3"] == pytest.approx(losses[OFF], rel=0.02)
    assert losses["e4m3"] != losses[OFF]
