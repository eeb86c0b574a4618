"""The decode workload on a CUDA device: kernels, captured steps, the oracle."""

from __future__ import annotations

import math

import pytest
import torch

from experiments.failure_kinds import kind_of
from experiments.parity.async_ import GPU_CALLS, in_flight
from experiments.parity.op_case import check_case
from experiments.parity.op_judge import Bar
from experiments.parity.token_truth import WANT
from experiments.workloads.base import DeviceFacts
from experiments.workloads.decode.config import NAMED
from experiments.workloads.decode.floor import stored_bytes
from experiments.workloads.decode.names import (
    SPLIT_RULE,
    SPLIT_RULE_CONTIGUOUS,
    STEP,
    WEIGHTS,
    floor_fact,
)
from experiments.workloads.decode.session import DecodeSession, open_session
from experiments.workloads.decode.sites import DecodeSites
from experiments.workloads.decode.sources import RandomSource
from experiments.workloads.decode.weights import LazyDecoder
from experiments.workloads.decode.workload import DECODE
from levers.base import engaged
from levers.cuda_graph import LEVER as CUDA_GRAPH
from levers.fa2_nsplits_cap import LEVER
from levers.kernels.split_kv import PagedKV, Workspace, decode_attention, plan_splits, truth
from levers.mxfp4_weights import LEVER as MXFP4

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SHORT = {
    "prompt_tokens": "512",
    "output_tokens": "32",
    "rounds": "1",
    "round_steps": "24",
    "ttft_repeats": "20",
    "concurrency": "1,4",
}


def facts() -> DeviceFacts:
    found = torch.cuda.get_device_properties(0)
    return DeviceFacts(
        "cuda:0", found.name, found.total_memory, sm_count=found.multi_processor_count
    )


def session(implementation: str = "engine", **changes: str) -> DecodeSession:
    parameters = DECODE.resolve({**SHORT, **changes}, facts())
    return open_session(parameters, "cuda:0", 1, implementation)


@pytest.mark.parametrize("dim", [16, 64, 128])
@pytest.mark.parametrize("group", [1, 2, 4, 8])
@pytest.mark.parametrize("splits", [1, 3, 8, 16, 33])
def test_the_kernel_gives_the_attention(dim: int, group: int, splits: int) -> None:
    draw = torch.Generator("cuda").manual_seed(splits)
    lengths, capacity, page, kv_heads = [4096, 1, 129, 2000], 4224, 128, 8
    per_slot = capacity // page
    pages = len(lengths) * per_slot
    table = torch.randperm(pages, device="cuda", generator=draw).view(len(lengths), per_slot)
    shape = (pages, kv_heads, page, dim)
    k, v = (torch.randn(shape, device="cuda", generator=draw, dtype=torch.bfloat16) for _ in "kv")
    for row, length in enumerate(lengths):
        for x in (k, v):
            x[table[row, length // page], :, length % page :] = math.nan
            x[table[row, length // page + 1 :]] = math.nan
    heads = kv_heads * group
    q = torch.randn(len(lengths), heads, dim, device="cuda", generator=draw).bfloat16()
    kv = PagedKV(k, v, table.to(torch.int32), torch.tensor(lengths, device="cuda").int())
    out = torch.full_like(q, math.nan)
    workspace = Workspace(splits, len(lengths), heads, dim, q.device)
    plan = plan_splits(capacity, page, splits)
    assert decode_attention(q, kv, plan, out, workspace, "triton") == splits
    error = (out.double() - truth(q, kv)).norm() / truth(q, kv).norm()
    assert float(error) < 4e-3


@pytest.mark.parametrize("setting", ["auto", "1", "3"])
def test_every_op_case_is_lossless(setting: str) -> None:
    for case in LEVER.op_cases(setting, "cuda"):
        result = check_case(case, 3, Bar())
        assert result.status == "passed", f"{case.name}: {result.fault}"


def test_a_captured_step_decodes_what_an_eager_one_does() -> None:
    arguments = {"want": "tokens", "prompts": 8, "concurrency": 4}
    eager = session(graph="off").outputs(arguments)
    captured = session(graph="on").outputs(arguments)
    assert eager.streams == captured.streams


def test_digests_of_the_logits_repeat_themselves() -> None:
    first, second = (session().outputs({"want": "digests"}) for _ in range(2))
    assert first.digests == second.digests
    assert set(first.nonfinite.values()) == {0}


@pytest.mark.parametrize("implementation", ["engine", "oracle:sdpa"])
def test_a_sample_has_every_axis(implementation: str) -> None:
    found = session(implementation)
    found.warm_up()
    measurement = found.measure()
    axes = {axis.name for axis in DECODE.axes(DECODE.resolve(SHORT, facts()))}
    assert set(measurement.values) == axes
    assert all(value > 0 for value in measurement.values.values())


def test_the_witness_sees_the_capped_launches() -> None:
    found = session(graph="on")
    with engaged(LEVER, found.sites, "1"):
        found.warm_up()
        found.sites[SPLIT_RULE].forget()
        found.exercise()
    assert set(LEVER.witness(found.sites[SPLIT_RULE]).values()) == {"num_splits=1"}


def test_the_contiguous_cache_decodes_what_the_pages_do() -> None:
    arguments = {"want": "tokens", "prompts": 8, "concurrency": 4}
    pages = session(graph="on").outputs(arguments)
    rows = session(graph="on", kv="contiguous").outputs(arguments)
    assert pages.streams == rows.streams


@pytest.mark.parametrize("kv", ["paged", "contiguous"])
def test_each_launch_site_has_its_own_witness_of_the_cap(kv: str) -> None:
    found = session(graph="on", kv=kv)
    with engaged(LEVER, found.sites, "1"):
        found.warm_up()
        found.exercise()
    seen = {name: dict(LEVER.witness(found.sites[name])) for name in LEVER.touches}
    used = SPLIT_RULE if kv == "paged" else SPLIT_RULE_CONTIGUOUS
    assert set(seen.pop(used).values()) == {"num_splits=1"}
    assert list(seen.values()) == [{}]


def test_the_held_out_loss_repeats_and_is_that_of_a_trained_model() -> None:
    losses = set()
    for _ in range(2):
        found = session(quality="on")
        found.warm_up()
        losses.add(found.measure().values["quality/nll"])
    (loss,) = losses
    assert 2.0 < loss < 4.0


def test_the_graph_lever_replays_the_very_bits_of_the_eager_step() -> None:
    found = session(graph="off")
    eager = found.outputs({"want": "digests"})
    with engaged(CUDA_GRAPH, found.sites, "on"):
        found.renew()
        captured = found.outputs({"want": "digests"})
        found.exercise()
        seen = dict(CUDA_GRAPH.witness(found.sites[STEP]))
    assert captured.digests == eager.digests
    assert set(seen.values()) == {"step=captured"}
    found.sites[STEP].forget()
    found.exercise()
    assert set(CUDA_GRAPH.witness(found.sites[STEP]).values()) == {"step=eager"}


def test_the_graph_levers_op_cases_hold() -> None:
    for case in CUDA_GRAPH.op_cases("on", "cuda"):
        result = check_case(case, 3, Bar())
        assert result.status == "passed", f"{case.name}: {result.fault}"


def test_replays_in_flight_give_the_bits_of_each_alone() -> None:
    found = in_flight(CUDA_GRAPH.op_cases("on", "cuda"), 1, cuda=True, least=GPU_CALLS)
    assert (found.status, found.passed) == ("passed", found.total)
    assert found.total >= GPU_CALLS


@pytest.mark.parametrize("setting", ["off", "on"])
def test_fp64_decodes_on_a_gpu_what_it_does_on_a_cpu(setting: str) -> None:
    asked = {"want": WANT, "prompts": 12, "concurrency": 4}
    streams = []
    for one in (facts(), DeviceFacts("cpu", "some CPU", 2**34)):
        parameters = DECODE.resolve({**SHORT, "quality": "on"}, one)
        found = open_session(parameters, one.device, 1, "engine")
        with engaged(MXFP4, found.sites, setting):
            streams.append(found.outputs(asked).streams)
    assert streams[0] == streams[1]


def test_a_replay_keeps_the_buffers_that_were_allocated_before_its_capture() -> None:
    (case, *_) = CUDA_GRAPH.op_cases("on", "cuda:0")
    inputs = case.inputs(5)
    first, again = case.outputs(inputs), case.outputs(inputs)
    case.candidate(inputs, first)
    taken = [torch.full((size,), math.nan, device="cuda") for size in (64, 128, 256, 512) * 64]
    case.candidate(inputs, again)
    assert all(map(torch.equal, first, again))
    assert all(one.isnan().all() for one in taken)


def test_a_named_size_is_loaded_without_a_second_copy() -> None:
    config = NAMED["random-4b"]
    device = torch.device("cuda:0")
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    source = RandomSource(config, 0, device, torch.bfloat16)
    decoder = LazyDecoder(config, source, DecodeSites("triton"), device, torch.bfloat16)
    assert torch.cuda.memory_allocated(device) == before
    weights = decoder.get().weights
    peak = torch.cuda.max_memory_allocated(device) - before
    assert stored_bytes(weights) == 2 * config.parameters
    assert peak <= 1.1 * stored_bytes(weights)


def test_graphs_are_captured_again_after_the_weights_changed() -> None:
    found = session(graph="on")
    plain = found.outputs({"want": "digests"}).digests
    site = found.sites[WEIGHTS]
    before = site.launch
    site.launch = lambda name, tensor: tensor * 0.5 if name == "down" else tensor
    assert found.outputs({"want": "digests"}).digests != plain
    site.launch = before
    assert found.outputs({"want": "digests"}).digests == plain


def test_a_cache_that_does_not_fit_is_an_outcome_with_a_name() -> None:
    parameters = {**DECODE.resolve({**SHORT, "model": "random-4b"}, facts())}
    parameters |= {"prompt_tokens": 32768, "concurrency": "1,184", "page_size": 128}
    ended = ""
    try:
        open_session(parameters, "cuda:0", 1, "engine").warm_up()
    except torch.OutOfMemoryError as error:
        ended = kind_of(error)
    torch.cuda.empty_cache()
    assert ended == "out-of-memory"


def test_a_step_states_its_multiple_of_the_bandwidth_floor() -> None:
    found = session(model="random-0.6b")
    found.warm_up()
    measured = found.measure().facts
    for count in (1, 4):
        assert 0.9 < float(measured[floor_fact(count)] or 0) < 50.0
