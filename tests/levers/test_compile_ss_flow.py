"""The lever that compiles the dense flow's blocks: declaration, witness, what is compiled."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters

from experiments.workloads.base import DeviceFacts
from experiments.workloads.flow.compiled import compile_facts
from experiments.workloads.flow.session import TrainingSession, open_session
from experiments.workloads.flow.workload import SS_FLOW
from levers.base import Settings, Site, engaged
from levers.compile_ss_flow import LEVER
from levers.compiler import SITE, TUNED
from levers.kernels.compiled_block import PARTS, CompiledBlock
from levers.lint import SampleFacts, complaints
from levers.policy import ParityClass
from levers.segment_sum_broadcast import LEVER as SEGMENT_SUM

CPU = DeviceFacts("cpu", "cpu", 8 << 30)
TINY = {"depth": "3", "bs": "2", "grid": "3", "steps": "2", "warmup": "1", "frozen": "1"}


pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*instantiated"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning"),
]
"""What the compiler itself warns of in its own files while it traces or loads."""


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> None:
    torch._dynamo.reset()
    counters.clear()


def facts(device: str = "cpu", sites: tuple[str, ...] = (SITE,), **more: object) -> SampleFacts:
    return SampleFacts(device, "ss_flow", parameters=more, sites=sites)


def session(**more: str) -> TrainingSession:
    found = open_session(SS_FLOW.resolve({**TINY, **more}, CPU), "cpu", 3, "engine")
    assert isinstance(found, TrainingSession)
    return found


def traced(backend: str = "eager") -> CompiledBlock:
    """As the lever's, but nothing is generated: the graphs run as they were traced."""
    return CompiledBlock(dynamic=False, backend=backend)


def test_it_is_acceptable_as_a_lever() -> None:
    assert complaints(LEVER) == ()
    assert LEVER.env == "LEVER_COMPILE_SS_FLOW"
    assert LEVER.settings == Settings(("off", "on", "max-autotune-no-cudagraphs"))


def test_its_policy_is_lossless_and_guards_memory_on_cuda() -> None:
    assert LEVER.policy(facts()).guard_for("memory/peak_bytes") is None
    assert LEVER.policy(facts("cuda")).guard_for("memory/peak_bytes") is not None
    assert LEVER.policy(facts("cuda")).claims is ParityClass.LOSSLESS


def test_it_is_unmet_without_site_dense_batch_or_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LEVER.unmet(facts(profile="dense"), "on") == ()
    assert SITE in LEVER.unmet(facts(sites=()), "on")[0]
    assert "compile_slat_flow" in LEVER.unmet(facts(profile="measured"), "on")[0]
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "C++ compiler" in LEVER.unmet(facts(), TUNED)[0]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "triton" in LEVER.unmet(facts("cuda"), "on")[0]
    assert LEVER.unmet(facts("cuda", sites=()), "off") == ()


def test_enabling_compiles_nothing_yet_and_is_undone() -> None:
    def found(block: object, *arguments: object) -> None: ...

    site = Site(SITE, found)
    with engaged(LEVER, {SITE: site}, "on"):
        assert isinstance(site.launch, CompiledBlock)
    assert site.launch is found
    assert compile_facts() == {}


def test_blocks_share_one_graph_a_part_without_a_break() -> None:
    one = session()
    one.sites[SITE].launch = traced()
    one.step().run()
    facts_of_it = compile_facts()
    assert facts_of_it["graph_breaks"] == 0
    assert facts_of_it["graph_break_reasons"] == ""
    # The frozen block's weights need no gradient, so that its parts are compiled apart.
    assert facts_of_it["compiled_frames"] == facts_of_it["compiled_graphs"] == 2 * len(PARTS)


def test_compiled_gradients_are_the_same_and_watching_recompiles_nothing() -> None:
    plain, one = (session(frozen="0", checkpointed="1") for _ in range(2))
    one.sites[SITE].launch = traced("aot_eager")
    assert one.step().run() == plain.step().run()
    pairs = zip(plain.step().model.parameters(), one.step().model.parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in pairs)
    before = compile_facts()
    one.exercise()
    one.step().run()
    assert compile_facts() == before
    plans = LEVER.witness(one.sites[SITE])
    assert plans["train/tok_s"] == "backward=CompiledFunctionBackward x 3"
    assert not one.sites["flow.modulate"].observations


def test_other_levers_of_its_parts_are_taken_into_the_graphs() -> None:
    plain, one = session(frozen="0"), session(frozen="0")
    with engaged(SEGMENT_SUM, plain.sites, "on"):
        reference = plain.step().run()
    one.sites[SITE].launch = traced()
    with engaged(SEGMENT_SUM, one.sites, "on"):
        assert one.step().run() == reference
    assert compile_facts()["graph_breaks"] == 0


def test_a_replaced_head_norm_gets_the_complex_phases_and_stays_outside() -> None:
    one = session(frozen="0")
    seen = []
    site = one.sites["flow.qk_norm_rope"]
    original = site.launch

    def replaced(q: object, k: object, g: object, h: object, phases: torch.Tensor | None) -> object:
        seen.append(phases is not None and phases.is_complex())
        return original(q, k, g, h, phases)

    site.launch = replaced
    one.sites[SITE].launch = traced()
    one.step().run()
    assert seen == [True, False] * 3
    assert compile_facts()["compiled_graphs"] == len(PARTS) - 2


def test_generated_code_is_no_further_from_fp64_than_the_original() -> None:
    for case in LEVER.op_cases("on", "cpu"):
        inputs = case.inputs(0)
        reference, candidate = case.outputs(inputs), case.outputs(inputs)
        case.reference(inputs, reference)
        case.candidate(inputs, candidate)
        for one, other, truth in zip(reference, candidate, case.truth(inputs), strict=True):
            gap = [(found.double() - truth).norm() for found in (one, other)]
            assert gap[1] <= 1.05 * gap[0], case.name
