"""The lever that compiles the packed flow's blocks: any token counts without a recompilation."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters

from experiments.workloads.base import DeviceFacts
from experiments.workloads.flow.batch import draw_samples
from experiments.workloads.flow.compiled import compile_facts
from experiments.workloads.flow.session import TrainingSession, open_session
from experiments.workloads.flow.workload import SLAT_FLOW
from levers.base import Settings, Site, engaged
from levers.compile_slat_flow import LEVER
from levers.compiler import SITE
from levers.kernels.compiled_block import PARTS, CompiledBlock
from levers.lint import SampleFacts, complaints

CPU = DeviceFacts("cpu", "cpu", 8 << 30)
TINY = {"depth": "2", "bs": "3", "tokens": "24", "cap": "64", "steps": "2", "warmup": "1"}


pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning"),
]
"""What the compiler itself warns of in its own files while it traces or loads."""


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> None:
    torch._dynamo.reset()
    counters.clear()


def facts(**more: object) -> SampleFacts:
    return SampleFacts("cpu", "slat_flow", parameters=more, sites=(SITE,))


def session(**more: str) -> TrainingSession:
    found = open_session(SLAT_FLOW.resolve({**TINY, **more}, CPU), "cpu", 3, "engine")
    assert isinstance(found, TrainingSession)
    return found


def test_it_is_acceptable_as_a_lever() -> None:
    assert complaints(LEVER) == ()
    assert LEVER.env == "LEVER_COMPILE_SLAT_FLOW"
    assert LEVER.settings == Settings(("off", "on", "max-autotune-no-cudagraphs"))


def test_a_dense_batch_is_unmet_and_names_the_other_lever() -> None:
    assert LEVER.unmet(facts(profile="lognormal"), "on") == ()
    assert "compile_ss_flow" in LEVER.unmet(facts(profile="dense"), "on")[0]
    assert SITE in LEVER.unmet(SampleFacts("cpu", "slat_flow"), "on")[0]


def test_it_is_enabled_and_undone() -> None:
    site = Site(SITE, len)
    with engaged(LEVER, {SITE: site}, "on"):
        assert isinstance(site.launch, CompiledBlock)
    assert site.launch is len


def test_batches_of_other_lengths_run_in_the_graphs_of_the_first() -> None:
    plain, one = session(accumulate="2"), session(accumulate="2")
    one.sites[SITE].launch = CompiledBlock(dynamic=True, backend="eager")
    assert one.step().run() == plain.step().run()
    found = compile_facts()
    assert found["compiled_frames"] == found["compiled_graphs"] == len(PARTS)
    assert found["graph_breaks"] == 0
    other = session(lengths_seed="5", accumulate="2").config
    for step in (plain.step(), one.step()):
        step.load(draw_samples(other, 1))
    assert len(set(plain.config.lengths) | set(other.lengths)) > 6
    assert one.step().run() == plain.step().run()
    assert compile_facts() == found


def test_the_cases_are_ragged_and_bounded_by_other_orders_of_the_sums() -> None:
    cases = LEVER.op_cases("on", "cpu")
    assert len({case.name for case in cases}) == len(cases) == 6
    case = cases[0]
    inputs = case.inputs(0)
    first, *others = case.reference, *case.reorderings
    outputs = case.outputs(inputs)
    first(inputs, outputs)
    assert len(others) == 3
    for reordered in others:
        found = case.outputs(inputs)
        reordered(inputs, found)
        assert torch.equal(found[0], outputs[0])
        assert not torch.equal(found[2], outputs[2])
        torch.testing.assert_close(found[2].float(), outputs[2].float(), rtol=0.1, atol=0.5)
