"""Near-ties beyond a policy's share: planted streams, and the shipped model in bf16."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from experiments.parity import tokens
from experiments.parity.bench import Bench
from experiments.parity.limits import Limits
from experiments.parity.stack import merge
from experiments.parity.token_truth import ALPHA, WANT, Departures, FromTruth, of_arms
from experiments.tasks import Outputs, Stream, Task
from experiments.workloads.base import DeviceFacts
from experiments.workloads.decode import generation, names, original
from experiments.workloads.decode.attention import SdpaAttention
from experiments.workloads.decode.building import engine_in_double
from experiments.workloads.decode.caches import ContiguousCache
from experiments.workloads.decode.engine import DecodeEngine
from experiments.workloads.decode.folder import model_config, model_folder
from experiments.workloads.decode.prompts import prompt_set
from experiments.workloads.decode.session import open_session
from experiments.workloads.decode.sites import DecodeSites
from experiments.workloads.decode.sources import FolderSource
from experiments.workloads.decode.weights import LazyDecoder
from experiments.workloads.decode.workload import DECODE
from levers import catalog
from levers.base import engaged
from levers.policy import ParityClass
from tests.support.fake_arms import FakeArms, FakeLever, FakeWorkload, passed, spec, streams

TOKENS = 12
MANY = 160


@dataclass
class InDouble(FakeWorkload):
    """A workload that also decodes in fp64."""

    decodes_in_double: bool = True


def parting(count: int, token: int) -> tuple[Stream, ...]:
    """Answers of which the first ``count`` leave the others at their third token."""
    plain = [7] * TOKENS
    return streams(*[[7, 7, token, *plain[3:]] if i < count else plain for i in range(MANY)])


def bench(
    ref: int,
    cand: int,
    *,
    gap: float = 0.2,
    later_gap: float = 0.2,
    there: bool = True,
    **policy: object,
) -> tuple[Bench, list[str]]:
    """Arms of which so many streams leave truth's, each at a token of its own."""
    asked: list[str] = []

    def plant(task: Task) -> Outputs | None:
        want = str(task.arguments.get("want"))
        asked.append(want)
        if want == "gaps":
            lengths = [len(tokens) for _, tokens, _ in task.arguments["prefixes"]]
            return Outputs(gaps=tuple(gap if one == 2 else later_gap for one in lengths))
        answers = {"cand": parting(cand, 9)}.get(task.arm, parting(ref, 8))
        found = parting(0, 0) if want == WANT else answers
        some = int(task.arguments.get("prompts", MANY))
        return Outputs(streams=found[:some], inputs_digest="in")

    of = spec(parameters={"concurrency": "1"}, **policy)  # type: ignore[arg-type]
    workload = InDouble() if there else FakeWorkload()
    return Bench(of, FakeLever(), workload, FakeArms(plant), "cpu", Limits(prompts=MANY)), asked


def test_arms_that_leave_fp64_as_often_as_each_other_are_lossless_however_often_they_part() -> None:
    of, asked = bench(44, 44)
    found = tokens.check(of)
    assert (found.status, found.strongest) == ("passed", ParityClass.LOSSLESS)
    assert asked.count(WANT) == 1
    assert found.figures["near_ties"] == 44
    assert found.figures["truth_left_by_reference"] == 44
    assert found.figures["truth_left_by_candidate"] == 44
    assert "left 44 times by the candidate, 44 by the reference: 1 times" in found.detail


def test_a_candidate_that_leaves_fp64_more_often_fails_and_both_counts_are_named() -> None:
    found = tokens.check(bench(40, 120)[0])
    assert (found.status, found.passed, found.total) == ("failed", 40, 160)
    assert (
        "120 near-ties, and fp64's streams are left 120 times by the candidate, 40" in found.worst
    )
    assert found.figures["truth_left_by_candidate"] == 120


def test_a_check_of_several_parts_has_the_counts_of_its_tokens() -> None:
    whole = merge([passed("determinism"), tokens.check(bench(44, 44)[0])], "a=on")
    assert whole.figures["truth_left_by_reference"] == 44


def test_too_few_departures_of_the_reference_tell_nothing_and_the_share_decides() -> None:
    found = tokens.check(bench(12, 12)[0])
    assert (found.status, found.worst) == ("failed", "12 near-ties where 1 are allowed")


def test_what_comes_behind_a_near_tie_is_asked_of_the_reference_too() -> None:
    found = tokens.check(bench(44, 44, later_gap=4.0)[0])
    assert found.status == "failed"
    assert found.worst == (
        "88 tokens behind near-ties are none that the reference would choose there"
    )
    assert "gap 4 nat" in found.where


def test_a_better_candidate_passes_though_most_of_its_streams_part() -> None:
    assert tokens.check(bench(120, 40)[0]).status == "passed"


@pytest.mark.parametrize(
    ("change", "worst"),
    [
        ({"there": False}, "44 near-ties where 1 are allowed"),
        ({"gap": 0.7}, "44 streams leave the reference's by more than a near-tie"),
        ({"strict_tokens": True}, "116 of 160 streams equal, all must be"),
    ],
)
def test_fp64_excuses_nothing_but_the_number_of_near_ties(
    change: Mapping[str, object], worst: str
) -> None:
    of, asked = bench(44, 44, **change)  # type: ignore[arg-type]
    found = tokens.check(of)
    assert (found.status, found.worst) == ("failed", worst)
    assert WANT not in asked


def test_fp64_is_not_asked_where_the_share_allows_what_parts() -> None:
    of, asked = bench(1, 2, near_tie_share=0.05)
    assert tokens.check(of).status == "passed"
    assert WANT not in asked


def test_departures_end_where_a_stream_leaves_and_cut_answers_are_compared_as_far_as_they_go() -> (
    None
):
    truth = Outputs(streams=streams([1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]))
    arm = Outputs(streams=streams([1, 2, 9, 4], [1, 2], [1, 2, 3, 4]))
    found = of_arms(arm, arm, truth)
    assert found.ref == found.cand == Departures(1, 3 + 2 + 4)


def test_a_rate_at_the_bound_is_seldom_refused_and_twice_the_rate_is_found() -> None:
    """Twice the 184 streams of an H200: 49 % leave in 60 tokens."""
    draw = np.random.default_rng(5)

    def refused(times: float) -> float:
        found = []
        for _ in range(400):
            left = [draw.exponential(90 / rate, 368) for rate in (1.0, times)]
            arms = [
                Departures(int((at < 60).sum()), int(np.minimum(at, 60).sum()) + 1) for at in left
            ]
            found.append(FromTruth(*arms).further)
        return float(np.mean(found))

    assert refused(1.0) <= 0.01
    assert refused(1.25) <= ALPHA + 0.02
    assert refused(2.0) >= 0.9


def test_a_reference_that_never_leaves_fp64_allows_a_few_by_chance_and_no_more() -> None:
    assert not FromTruth(Departures(0, 999), Departures(5, 999)).further
    assert FromTruth(Departures(0, 999), Departures(6, 999)).further
    assert "a rate of 0 for the reference" in FromTruth(Departures(), Departures(6, 9)).describe()


# --- the shipped model ------------------------------------------------------------------------

CPU = DeviceFacts("cpu", "some CPU", 2**34)
SHORT = {
    "prompt_tokens": "48",
    "output_tokens": "24",
    "concurrency": "1,4",
    "quality": "on",
    "ttft_tokens": "16",
}


@pytest.mark.parametrize("setting", ["off", "on"])
def test_a_session_decodes_its_stored_weights_in_fp64_whatever_computes_at_its_sites(
    setting: str,
) -> None:
    session = open_session(DECODE.resolve(SHORT, CPU), "cpu", 1, "engine")
    asked = {"prompts": 6, "concurrency": 3}
    with engaged(catalog.get("mxfp4_weights"), session.sites, setting):
        plain = session.outputs({**asked, "want": "tokens"}).streams
        session.sites[names.SWIGLU].launch = broken = _zeros
        truth = session.outputs({**asked, "want": WANT}).streams
        assert session.sites[names.SWIGLU].launch is broken
        session.sites[names.SWIGLU].launch = original.swiglu
    assert plain == truth  # fp32 on a CPU parts from fp64 nowhere here


def _zeros(gate_up_NJ: Tensor) -> Tensor:
    return torch.zeros_like(gate_up_NJ.chunk(2, dim=-1)[0])


SLOTS, PROMPT, ANSWER, PROMPTS = 8, 96, 48, 64


def in_bf16(change: Callable[[DecodeSites], None]) -> DecodeEngine:
    """The shipped model as a GPU decodes it: bf16 weights, activations and caches."""
    config, device, dtype = model_config("shipped"), torch.device("cpu"), torch.bfloat16
    sites = DecodeSites()
    change(sites)
    source = FolderSource(config, model_folder("shipped"), device, dtype)
    cache = ContiguousCache(config, SLOTS, PROMPT + ANSWER, device, dtype)
    decoder = LazyDecoder(config, source, sites, device, dtype)
    return DecodeEngine(decoder, SdpaAttention(config, cache), SLOTS, PROMPT + ANSWER)


def decoded(engine: DecodeEngine) -> Outputs:
    prompts = prompt_set("shipped", engine.config, PROMPT).fixed(PROMPTS)
    step = engine.eager(SLOTS)
    return Outputs(streams=generation.greedy_streams(engine, step, prompts, SLOTS, ANSWER))


def unchanged(sites: DecodeSites) -> None:
    del sites


def one_rounding(sites: DecodeSites) -> None:
    """Norm and rotation of heads in fp32, rounded once: nearer to truth, and other bits."""

    def launch(packed: Tensor, norms, rope, heads, eps: float):  # type: ignore[no-untyped-def]
        wide = [tuple(one.float() for one in some) for some in (norms, rope)]
        found = original.qk_norm_rope(packed.float(), wide[0], wide[1], heads, eps)  # type: ignore[arg-type]
        return tuple(one.to(packed.dtype) for one in found)

    sites.by_name[names.QK_NORM_ROPE].launch = launch


def three_bits(sites: DecodeSites) -> None:
    """What the heads get keeps three bits behind the leading one: no bf16 kernel errs so."""

    def rounded(x: Tensor) -> Tensor:
        unit = 2.0 ** (torch.floor(torch.log2(x.float().abs().clamp_min(1e-30))) - 3)
        return (torch.round(x.float() / unit) * unit).to(x.dtype)

    def launch(*given):  # type: ignore[no-untyped-def]
        return tuple(map(rounded, original.qk_norm_rope(*given)))

    sites.by_name[names.QK_NORM_ROPE].launch = launch


def test_in_bf16_a_better_kernel_parts_beyond_the_share_and_a_worse_one_is_told_from_it() -> None:
    engine = in_bf16(unchanged)
    ref, truth = decoded(engine), decoded(engine_in_double(engine, SLOTS))
    better, worse = decoded(in_bf16(one_rounding)), decoded(in_bf16(three_bits))
    parted = sum(one != other for one, other in zip(ref.streams, better.streams, strict=True))
    assert parted > 0.01 * PROMPTS
    assert not of_arms(ref, better, truth).further
    assert of_arms(ref, worse, truth).further
