"""The lever that replays the decode step from a graph: where it can run, and what it asks for."""

from __future__ import annotations

import torch

from experiments.parity.async_ import in_flight
from experiments.parity.op_case import check_case
from experiments.parity.op_judge import Bar
from experiments.workloads.base import DeviceFacts
from experiments.workloads.decode.workload import DECODE
from levers.base import Site, engaged
from levers.cuda_graph import LEVER, SITE
from levers.lint import SampleFacts
from levers.policy import ParityClass

H200 = DeviceFacts("cuda:0", "NVIDIA H200", 141 * 10**9, sm_count=132)


def unmet(**requested: str) -> tuple[str, ...]:
    parameters = DECODE.resolve(requested, H200)
    facts = SampleFacts("cuda", "decode", parameters, DECODE.sites(parameters))
    return LEVER.unmet(facts, "on")


class Engine:
    """Stands for the decoder: says which step it was asked for."""

    def captured(self, count: int) -> str:
        return f"captured {count}"

    def eager(self, count: int) -> str:
        return f"eager {count}"


def test_where_the_step_runs_eagerly_it_can_be_captured() -> None:
    assert unmet(graph="off") == ()


def test_where_the_step_is_captured_anyway_the_cure_is_named() -> None:
    (reason,) = unmet()
    assert "--set graph=off" in reason


def test_an_attention_that_reads_lengths_on_the_host_cannot_be_captured() -> None:
    (reason,) = unmet(graph="off", attn="torch")
    assert "--set attn=triton" in reason


def test_a_cpu_has_no_graphs() -> None:
    (reason,) = LEVER.unmet(SampleFacts("cpu", "decode", sites=(SITE,)), "on")
    assert "a cpu has no CUDA graphs" in reason


def test_it_asks_the_engine_for_its_captured_step() -> None:
    site = Site(SITE, Engine.eager)
    assert site.launch(Engine(), 4) == "eager 4"
    with engaged(LEVER, {SITE: site}, "on"):
        assert site.launch(Engine(), 4) == "captured 4"
    assert site.launch(Engine(), 4) == "eager 4"


def test_the_witness_says_how_the_step_was_run() -> None:
    site = Site(SITE, Engine.eager)
    site.observe("decode/tok_s/c4", "step=captured")
    assert dict(LEVER.witness(site)) == {"decode/tok_s/c4": "step=captured"}


def test_it_claims_to_change_no_bit() -> None:
    assert LEVER.policy(SampleFacts("cuda", "decode")).claims is ParityClass.BYTE_EXACT


def test_every_op_case_gives_the_bits_of_the_launches() -> None:
    for case in LEVER.op_cases("on", "cpu"):
        result = check_case(case, 3, Bar())
        assert result.status == "passed", f"{case.name}: {result.fault}"
        inputs = case.inputs(1)
        ours, theirs = case.outputs(inputs), case.outputs(inputs)
        case.candidate(inputs, ours)
        case.reference(inputs, theirs)
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_requests_in_flight_do_not_share_buffers() -> None:
    result = in_flight(tuple(LEVER.op_cases("on", "cpu")), 5, cuda=False)
    assert result.status == "passed", result.fault
