"""The lever of the samples' order: declaration, needs, order, witness, parity, inputs."""

from __future__ import annotations

import contextlib
import copy
import dataclasses

import pytest
import torch

from experiments.workloads.base import DeviceFacts
from experiments.workloads.flow.inputs import batch_digest
from experiments.workloads.flow.session import TrainingSession, open_session
from experiments.workloads.flow.workload import SLAT_FLOW
from levers.base import OpCase, Site, claims, engaged
from levers.errors import OtherWork
from levers.lint import SampleFacts, complaints
from levers.longest_first import LEVER, SITE
from levers.per_gpu_batch import LEVER as PER_GPU_BATCH

CPU = DeviceFacts("cpu", "cpu", 8 << 30)
TINY = {"depth": "1", "bs": "4", "steps": "2", "warmup": "1", "tokens": "24", "cap": "64"}


def facts(**parameters: object) -> SampleFacts:
    return SampleFacts("cpu", "slat_flow", parameters=parameters, sites=(SITE,))


def session(**more: str) -> TrainingSession:
    found = open_session(SLAT_FLOW.resolve({**TINY, **more}, CPU), "cpu", 3, "engine")
    assert isinstance(found, TrainingSession)
    return found


def test_it_is_acceptable_as_a_lever() -> None:
    assert complaints(LEVER) == ()


def test_what_has_one_order_is_unmet() -> None:
    assert LEVER.unmet(facts(profile="lognormal", bs=4), "on") == ()
    assert LEVER.unmet(facts(profile="uniform", bs=4), "off") == ()
    assert "one length" in LEVER.unmet(facts(profile="uniform", bs=4), "on")[0]
    assert SITE in LEVER.unmet(SampleFacts("cpu", "ss_flow"), "on")[0]


@dataclasses.dataclass(frozen=True)
class Named:
    name: str
    coords: range


def test_each_group_is_ordered_and_keeps_its_samples() -> None:
    drawn = [Named(name, range(n)) for name, n in zip("abcdef", (2, 5, 5, 1, 9, 3), strict=True)]
    site = Site(SITE, lambda samples, size: [samples[:size], samples[size:]])
    with engaged(LEVER, {SITE: site}, "on"):
        groups = site.launch(drawn, 3)
    assert [[one.name for one in group] for group in groups] == [["b", "c", "a"], ["e", "f", "d"]]
    assert [one.name for one in site.launch(drawn, 3)[0]] == ["a", "b", "c"]


@pytest.mark.parametrize("first", ["longest_first", "per_gpu_batch"])
def test_micro_batches_of_another_size_are_ordered_too(first: str) -> None:
    both = {"longest_first": (LEVER, "on"), "per_gpu_batch": (PER_GPU_BATCH, "2")}
    one = session(accumulate="2")
    drawn = [len(sample.coords) for sample in one.step().samples]
    second = next(name for name in both if name != first)
    claims([lever for lever, _ in both.values()])
    with contextlib.ExitStack() as on:
        for name in (first, second):
            on.enter_context(engaged(both[name][0], one.sites, both[name][1]))
        found = [batch.layout.lengths for batch in one.step().batches()]
    pairs = [drawn[at : at + 2] for at in range(0, 8, 2)]
    assert found == [tuple(sorted(pair, reverse=True)) for pair in pairs]


@pytest.mark.parametrize("accumulate", ["1", "2"])
def test_the_step_packs_another_order_of_the_same_samples(accumulate: str) -> None:
    digests, losses, plans, lengths = {}, {}, {}, {}
    for setting in ("off", "on"):
        one = session(accumulate=accumulate)
        with engaged(LEVER, one.sites, setting):
            found = one.measure()
            one.exercise()
            lengths[setting] = [batch.layout.lengths for batch in one.step().batches()]
        digests[setting], losses[setting] = found.inputs_digest, found.raw["loss"][0]
        assert "inputs_overwritten" not in found.facts
        plans[setting] = LEVER.witness(one.sites[SITE])["train/tok_s"]
    assert plans == {
        "off": f"samples=4 x {accumulate}",
        "on": f"samples=4 reordered x {accumulate}",
    }
    assert lengths["on"] != lengths["off"]
    assert lengths["on"] == [tuple(sorted(one, reverse=True)) for one in lengths["off"]]
    assert digests["on"] == digests["off"]
    assert losses["on"] == pytest.approx(losses["off"], rel=1e-5)


def test_switching_it_off_inside_a_process_packs_the_drawn_order_again() -> None:
    one = session()
    before = one.step().batches()
    with engaged(LEVER, one.sites, "on"):
        during = one.step().batches()
    after = one.step().batches()
    assert during[0].layout.lengths != before[0].layout.lengths == after[0].layout.lengths


def test_what_is_cut_otherwise_is_another_plan() -> None:
    plans = set()
    for cut in (lambda s: [s[:4], s[4:]], lambda s: [s[::2], s[1::2]], lambda s: [s[4:], s[:4]]):
        one = session(accumulate="2")
        one.sites[SITE].launch = lambda samples, _, cut=cut: cut(samples)
        one.exercise()
        plans.add(LEVER.witness(one.sites[SITE])["train/tok_s"])
    assert plans == {"samples=4 x 2", "samples=4 regrouped x 2"}


@pytest.mark.parametrize(
    "cut",
    [
        lambda s: [s[:3]],
        lambda s: [[*s, s[0]]],
        lambda s: [[s[0], *s[:3]]],
        lambda s: [s, []],
        lambda s: [[*s[:3], copy.copy(s[3])]],
        lambda s: [],
    ],
    ids=["one left out", "one more", "one twice", "an empty one", "a stranger", "none"],
)
def test_a_split_that_is_not_all_of_the_samples_is_refused_while_it_is_timed(cut: object) -> None:
    one = session()
    one.warm_up()
    one.sites[SITE].launch = lambda samples, _: cut(samples)  # type: ignore[operator]
    with pytest.raises(OtherWork, match="given 4 samples and split them into"):
        one.measure()


def test_the_inputs_are_those_that_the_last_step_worked_on() -> None:
    one = session()
    found = one.measure()
    assert found.inputs_digest == batch_digest(*one.step().ran)
    assert found.facts["loss_allowance"] == 0.002
    moving = session(optimizer="adamw").measure()
    assert moving.facts["loss_allowance"] == pytest.approx(0.03)


def test_an_overwritten_input_is_found_in_any_order() -> None:
    one = session()
    with engaged(LEVER, one.sites, "on"):
        (batch,) = one.step().batches()
        digest = batch_digest(batch)
        batch.noise_NL[0] += 1
        assert batch_digest(batch) != digest
        batch.noise_NL[0] -= 1
        batch.layout.cu_seqlens[1] += 1
        assert batch_digest(batch) != digest


def test_gradients_of_either_order_are_equally_near_truth() -> None:
    errors = {}
    for setting in ("off", "on"):
        one = session()
        with engaged(LEVER, one.sites, setting):
            found = one.outputs({"want": "gradients"}).gradients
        errors[setting] = {g.parameter: g.relative_error for g in found}
    for name, error in errors["on"].items():
        assert error <= 1.5 * errors["off"][name] + 2.0**-8, name


@pytest.mark.parametrize("case", LEVER.op_cases("on", "cpu"), ids=lambda one: str(one.name))
def test_no_order_is_further_from_fp64_than_the_others(case: OpCase) -> None:
    inputs = case.inputs(0)
    truths = case.truth(inputs)

    def errors(call: object) -> list[float]:
        outputs = case.outputs(inputs)
        call(inputs, outputs)  # type: ignore[operator]
        pairs = zip(outputs, truths, strict=True)
        return [float((out.double() - truth).norm() / truth.norm()) for out, truth in pairs]

    found = errors(case.candidate)
    others = zip(*map(errors, (case.reference, *case.reorderings)), strict=True)
    for error, most in zip(found, map(max, others), strict=True):
        assert error <= 1.05 * most + torch.finfo(torch.float32).eps
