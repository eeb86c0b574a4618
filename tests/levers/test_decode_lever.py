"""What the levers of a decode step share: policy by device, needs, hooks, what ran in a step."""

from __future__ import annotations

import pytest

from experiments.workloads.base import DeviceFacts
from experiments.workloads.decode.session import DecodeSession, open_session
from experiments.workloads.decode.workload import DECODE
from levers import fused_block, fused_chain, qk_norm_rope
from levers.base import Site, engaged
from levers.decode_lever import DecodeLever
from levers.kernels.add_norm import AddNorm
from levers.kernels.decode_qk_rope import QkNormRope
from levers.kernels.fused_block import FusedBlock
from levers.lint import SampleFacts, complaints
from levers.policy import ParityClass
from levers.source import source_files

LEVERS: tuple[DecodeLever, ...] = (fused_chain.LEVER, qk_norm_rope.LEVER, fused_block.LEVER)
EXACT = (fused_chain.LEVER, qk_norm_rope.LEVER)
KERNELS = (AddNorm, QkNormRope, FusedBlock)
CPU = DeviceFacts("cpu", "some CPU", 2**34)
SHORT = {
    "prompt_tokens": "96",
    "output_tokens": "24",
    "rounds": "2",
    "round_steps": "12",
    "ttft_repeats": "20",
    "concurrency": "1,3",
}
each = pytest.mark.parametrize("lever", LEVERS, ids=[lever.name for lever in LEVERS])


def facts(lever: DecodeLever, device: str) -> SampleFacts:
    return SampleFacts(device, "decode", {}, lever.touches)


@each
def test_it_is_acceptable_and_its_base_is_in_its_digest(lever: DecodeLever) -> None:
    assert complaints(lever) == ()
    assert "levers.decode_lever" in [name for name, _ in source_files(lever)]


@each
def test_tails_are_guarded_everywhere_and_memory_on_cuda(lever: DecodeLever) -> None:
    cpu, cuda = (lever.policy(facts(lever, device)) for device in ("cpu", "cuda"))
    for policy, margin in ((cpu, 0.03), (cuda, 0.01)):
        rate = policy.guard_for("decode/tok_s/c8")
        assert rate is not None
        assert rate.margin == margin
        for axis in ("decode/ttft_ms/p95", "decode/itl_ms/p95"):
            tail = policy.guard_for(axis)
            assert tail is not None
            assert tail.margin == 0.03
    assert cpu.guard_for("memory/peak_bytes") is None
    memory = cuda.guard_for("memory/peak_bytes")
    assert memory is not None
    assert memory.margin == 0.01


def test_one_claims_byte_exact_and_may_ship_lossless_and_two_claim_lossless() -> None:
    policy = fused_chain.LEVER.policy(facts(fused_chain.LEVER, "cuda"))
    assert policy.claims is ParityClass.BYTE_EXACT
    assert policy.demanded is ParityClass.LOSSLESS
    for lever in (qk_norm_rope.LEVER, fused_block.LEVER):
        policy = lever.policy(facts(lever, "cuda"))
        assert policy.claims is policy.demanded is ParityClass.LOSSLESS


@each
def test_missing_triton_is_unmet_on_cuda(
    lever: DecodeLever, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lever.unmet(facts(lever, "cuda"), "on") == ()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "triton" in lever.unmet(facts(lever, "cuda"), "on")[0]
    assert lever.unmet(facts(lever, "cuda"), "off") == ()


def test_what_runs_the_originals_operators_on_a_cpu_is_unmet_there() -> None:
    for lever in (fused_block.LEVER, fused_chain.LEVER):
        assert "CUDA" in lever.unmet(facts(lever, "cpu"), "on")[0]
        assert lever.unmet(facts(lever, "cpu"), "off") == ()
    assert qk_norm_rope.LEVER.unmet(facts(qk_norm_rope.LEVER, "cpu"), "on") == ()


@pytest.mark.parametrize(("lever", "kernel"), list(zip(LEVERS, KERNELS, strict=True)))
def test_it_puts_a_callable_that_says_what_it_ran(lever: DecodeLever, kernel: type) -> None:
    def found(*arguments: object) -> None: ...

    (name,) = lever.touches
    site = Site(name, found)
    with engaged(lever, {name: site}, "on"):
        assert isinstance(site.launch, kernel)
        assert site.launch.ran == ""  # type: ignore[attr-defined]
    assert site.launch is found


def test_early_launches_are_a_setting_of_the_fused_block() -> None:
    assert fused_block.LEVER.settings.names == ("off", "on", "early")
    site = Site(fused_block.SITE, lambda: None)
    with engaged(fused_block.LEVER, {fused_block.SITE: site}, "early"):
        assert isinstance(site.launch, FusedBlock)
        assert site.launch._early


def session() -> DecodeSession:
    return open_session(DECODE.resolve(SHORT, CPU), "cpu", 1, "engine")


@pytest.mark.parametrize("lever", EXACT, ids=[lever.name for lever in EXACT])
def test_streams_and_logits_of_the_shipped_model_are_the_same_bits(lever: DecodeLever) -> None:
    (name,) = lever.touches
    streams, digests, plans = [], [], []
    for setting in ("off", "on"):
        one = session()
        with engaged(lever, one.sites, setting):
            one.exercise()
            plans.append(lever.witness(one.sites[name]))
            streams.append(one.outputs({"want": "tokens", "prompts": 4, "concurrency": 3}).streams)
            digests.append(one.outputs({"want": "digests"}).digests)
    assert streams[0] == streams[1]
    assert digests[0] == digests[1]
    assert set(plans[0]) == set(plans[1]) == {"decode/tok_s/c1", "decode/tok_s/c3"}
    assert all(plans[0][axis] != plans[1][axis] for axis in plans[0])
