"""The lever of the micro-batch size: declaration, policy, split, witness, parity of the splits."""

from __future__ import annotations

import pytest

from experiments.workloads.base import DeviceFacts
from experiments.workloads.flow.session import TrainingSession, open_session
from experiments.workloads.flow.workload import SLAT_FLOW, SS_FLOW, FlowWorkload
from levers.base import OpCase, Settings, Site, engaged
from levers.lint import SampleFacts, complaints
from levers.per_gpu_batch import LEVER, SITE
from levers.policy import Guard

CPU = DeviceFacts("cpu", "cpu", 8 << 30)
TINY = {"depth": "1", "bs": "4", "accumulate": "2", "steps": "2", "warmup": "1"}
SHORT = {"slat_flow": {"tokens": "24", "cap": "64"}, "ss_flow": {"grid": "3"}}


def facts(device: str = "cpu", **parameters: object) -> SampleFacts:
    return SampleFacts(device, "ss_flow", parameters=parameters, sites=(SITE,))


def session(workload: FlowWorkload, **more: str) -> TrainingSession:
    asked = {**TINY, **SHORT[workload.name], **more}
    found = open_session(workload.resolve(asked, CPU), "cpu", 3, "engine")
    assert isinstance(found, TrainingSession)
    return found


def test_it_is_acceptable_as_a_lever() -> None:
    assert complaints(LEVER) == ()
    assert LEVER.env == "LEVER_PER_GPU_BATCH"
    assert LEVER.settings == Settings(("off", "2", "4", "8", "12"))


def test_peak_memory_has_a_ceiling_and_no_margin_on_cuda() -> None:
    assert LEVER.policy(facts("cuda")).guards == (Guard("memory/peak_bytes", ceiling=0.75),)
    assert LEVER.policy(facts()).guards == ()


def test_a_batch_that_does_not_split_evenly_is_unmet() -> None:
    assert LEVER.unmet(facts(bs=8, accumulate=3), "12") == ()
    assert "no multiple of 12" in LEVER.unmet(facts(bs=8, accumulate=1), "12")[0]
    assert "8 samples already" in LEVER.unmet(facts(bs=8, accumulate=3), "8")[0]
    assert LEVER.unmet(facts(bs=8, accumulate=1), "off") == ()
    assert SITE in LEVER.unmet(SampleFacts("cpu", "decode"), "2")[0]


def test_samples_are_split_in_their_order_whatever_the_references_size() -> None:
    site = Site(SITE, lambda samples, size: [samples])
    with engaged(LEVER, {SITE: site}, "4"):
        assert site.launch(list(range(8)), 3) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert site.launch([1], 3) == [[1]]


@pytest.mark.parametrize("workload", [SLAT_FLOW, SS_FLOW], ids=lambda one: str(one.name))
def test_the_split_changes_the_work_and_neither_the_samples_nor_the_loss(
    workload: FlowWorkload,
) -> None:
    digests, losses, plans = {}, {}, {}
    for setting in ("off", "2", "8"):
        one = session(workload)
        with engaged(LEVER, one.sites, setting):
            found = one.measure()
            one.exercise()
        digests[setting] = found.inputs_digest
        losses[setting] = found.raw["loss"][0]
        plans[setting] = LEVER.witness(one.sites[SITE])["train/tok_s"]
    assert plans == {"off": "samples=4 x 2", "2": "samples=2 x 4", "8": "samples=8 x 1"}
    assert len(set(digests.values())) == 1
    assert losses["2"] == pytest.approx(losses["off"], rel=1e-5)
    assert losses["8"] == pytest.approx(losses["off"], rel=1e-5)


@pytest.mark.parametrize("workload", [SLAT_FLOW, SS_FLOW], ids=lambda one: str(one.name))
def test_gradients_of_either_split_are_equally_near_truth(workload: FlowWorkload) -> None:
    errors = {}
    for setting in ("off", "2"):
        one = session(workload, tokens="16") if workload is SLAT_FLOW else session(workload)
        with engaged(LEVER, one.sites, setting):
            found = one.outputs({"want": "gradients"}).gradients
        errors[setting] = {g.parameter: g.relative_error for g in found}
    for name, error in errors["2"].items():
        assert error <= 1.5 * errors["off"][name] + 2.0**-8, name


@pytest.mark.parametrize("case", LEVER.op_cases("4", "cpu"), ids=lambda one: str(one.name))
def test_no_split_is_further_from_fp64_than_the_other_splits(case: OpCase) -> None:
    inputs = case.inputs(0)
    (truth,) = case.truth(inputs)

    def error(call: object) -> float:
        outputs = case.outputs(inputs)
        call(inputs, outputs)  # type: ignore[operator]
        return float((outputs[0].double() - truth).norm())

    largest = max(map(error, (case.reference, *case.reorderings)))
    assert error(case.candidate) <= 1.05 * largest
