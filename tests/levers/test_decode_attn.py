"""The lever on the CPU; its kernels of CUDA run in tests/gpu/test_decode_attn_gpu.py."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from experiments.workloads.base import DeviceFacts
from experiments.workloads.decode.session import open_session
from experiments.workloads.decode.workload import DECODE
from levers.base import OpCase, Site, claims, engaged
from levers.decode_attn import BACKENDS, LEVER, RULES, SITE
from levers.fa2_nsplits_cap import LEVER as CAP
from levers.kernels.decode_attn import Fa2Attention, Fa3Attention, attention_by
from levers.kernels.decode_attn_cases import op_cases
from levers.kernels.split_heuristic import OWN_RULE, DecodeShape, upstream_splits
from levers.kernels.split_kv import PagedKV, SplitPlan, Workspace, plan_splits
from levers.lint import SampleFacts, complaints
from levers.policy import ParityClass

SHAPE = DecodeShape(batch=1, kv_heads=8, kv_tokens=896, kv_block=128, sm_count=48)


def facts(device: str = "cuda", **parameters: object) -> SampleFacts:
    return SampleFacts(device, "decode", parameters, LEVER.touches)


def own(*arguments: object) -> int:
    return 0


def sites() -> dict[str, Site]:
    return {SITE: Site(SITE, own), **{name: Site(name, upstream_splits) for name in RULES}}


def unmet(setting: str, device: str = "cuda", **parameters: object) -> str:
    return "; ".join(LEVER.unmet(facts(device, **parameters), setting))


def test_the_declaration_has_no_complaints() -> None:
    assert complaints(LEVER) == ()
    assert LEVER.policy(facts()).claims is ParityClass.LOSSLESS


def test_it_swaps_the_attention_and_asks_the_rules_for_its_kernel() -> None:
    known = sites()
    with engaged(LEVER, known, "torch"):
        assert known[SITE].launch.ran == "torch"  # type: ignore[attr-defined]
        assert [known[name].launch(SHAPE) for name in RULES] == [7, 7]
        assert {known[name].launch.backend for name in RULES} == {"torch"}  # type: ignore[attr-defined]
    assert known[SITE].launch is own


def test_it_composes_with_the_cap_in_either_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levers.kernels.decode_attn.attention_by", lambda backend: own)
    claims([LEVER, CAP])
    for levers in ([(LEVER, "fa3"), (CAP, "auto")], [(CAP, "auto"), (LEVER, "fa3")]):
        known = sites()
        (one, first), (other, second) = levers
        with engaged(one, known, first):
            assert known[RULES[0]].launch(SHAPE) in (OWN_RULE, 6)
            with engaged(other, known, second):
                assert [known[name].launch(SHAPE) for name in RULES] == [6, 6]
        assert known[RULES[1]].launch is upstream_splits


def test_the_workloads_own_attention_is_no_other_one() -> None:
    assert "already" in unmet("triton", attn="triton")
    assert "already" in unmet("torch", "cpu", attn="torch")
    assert unmet("off", attn="triton") == ""


@pytest.mark.parametrize("setting", ["triton", "fa2", "fa3"])
def test_kernels_of_cuda_are_unmet_on_a_cpu(setting: str) -> None:
    assert "CUDA alone" in unmet(setting, "cpu", attn="torch")


def test_fa2_is_unmet_on_small_pages_and_names_both_cures() -> None:
    reason = unmet("fa2", kv="paged", page_size=128)
    assert "kv=contiguous" in reason
    assert "page_size=256" in reason
    assert "pages" not in unmet("fa2", kv="paged", page_size=512)
    assert "pages" not in unmet("fa2", kv="contiguous", page_size=128)
    assert "pages" not in unmet("fa3", kv="paged", page_size=16)


def test_a_form_that_reads_the_host_is_unmet_in_a_captured_step() -> None:
    assert "graph=off" in unmet("torch", attn="triton", graph="on")
    assert unmet("torch", attn="triton", graph="off") == ""


@pytest.mark.parametrize(("setting", "package"), [("fa2", "flash-attn 2"), ("fa3", "Attention-3")])
def test_a_package_that_is_not_installed_is_named(
    setting: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert package in unmet(setting, kv="contiguous")


def test_an_unknown_backend_is_an_error_that_names_those_there_are() -> None:
    with pytest.raises(ValueError, match="torch, triton, fa2 and fa3"):
        attention_by("fa9")


def cases(backend: str) -> list[OpCase]:
    return list(op_cases(backend, "cpu"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_cases_cover_ratios_lengths_layouts_and_values(backend: str) -> None:
    names = [case.name for case in cases(backend)]
    assert len(names) == len(set(names)) <= 12
    text = " ".join(names)
    for word in ("one token", "cap-long", "2 q heads", "4 q heads", "ragged", "contiguous", "c8"):
        assert word in text
    for word in ("large means", "cancelling", "peaked"):
        assert word in text


@pytest.mark.parametrize("number", range(12))
def test_our_plain_form_is_near_truth_in_every_case(number: int) -> None:
    case = cases("torch")[number]
    inputs = case.inputs(3)
    outputs = tuple(one.fill_(torch.nan) for one in case.outputs(inputs))
    case.candidate(inputs, outputs)
    true = case.truth(inputs)[0]
    bound = 1e-5 * float(true.abs().max())
    assert float((outputs[0].double() - true).abs().max()) <= bound


@dataclass
class Recorded:
    """Stands for a library's operator: keeps what it was called with and writes the output."""

    arguments: tuple[object, ...] = ()
    named: dict[str, object] | None = None

    def __call__(self, *arguments: object, **named: object) -> None:
        self.arguments, self.named = arguments, named
        out = named.get("out", arguments[12] if len(arguments) > 12 else None)
        assert isinstance(out, torch.Tensor)
        out.fill_(1.0)


def launch_of(kind: type, operator: Recorded):  # type: ignore[no-untyped-def]
    launch = kind.__new__(kind)
    launch._forward = operator
    return launch


def paged(pages: int, page: int, batch: int = 2, dtype: torch.dtype = torch.bfloat16) -> PagedKV:
    k, v = (torch.zeros(batch * pages, 2, page, 16, dtype=dtype) for _ in "kv")
    table = torch.arange(batch * pages, dtype=torch.int32).view(batch, pages)
    return PagedKV(k, v, table, torch.ones(batch, dtype=torch.int32))


def attend(launch, kv: PagedKV, heads: int = 4, splits: int = 3):  # type: ignore[no-untyped-def]
    q = torch.zeros(2, heads, 16, dtype=kv.k_PKSD.dtype)
    out = torch.full_like(q, torch.nan)
    plan = SplitPlan(splits, 256)
    found = launch(q, kv, plan, out, Workspace(1, 2, heads, 16, q.device))
    return out, found


def test_fa2_is_handed_pages_as_views_and_writes_into_our_output() -> None:
    operator, kv = Recorded(), paged(2, 256)
    out, splits = attend(launch_of(Fa2Attention, operator), kv)
    assert splits == 3
    assert bool((out == 1).all())
    q, k, _, *_ = operator.arguments
    assert isinstance(q, torch.Tensor)
    assert isinstance(k, torch.Tensor)
    assert q.shape == (2, 1, 4, 16)
    assert k.shape == (4, 256, 2, 16)
    assert k.data_ptr() == kv.k_PKSD.data_ptr()
    assert operator.arguments[8] is None
    assert operator.arguments[10] is kv.table_BM
    assert operator.arguments[12].shape == (2, 2, 2, 16)  # type: ignore[attr-defined]
    assert operator.arguments[-1] == 3
    assert len(operator.arguments) == 20


def test_fa2_takes_the_output_as_it_is_where_each_query_head_has_its_own_keys() -> None:
    operator = Recorded()
    out, _ = attend(launch_of(Fa2Attention, operator), paged(1, 40), heads=2)
    assert operator.arguments[12].shape == (2, 1, 2, 16)  # type: ignore[attr-defined]
    assert bool((out == 1).all())


def test_a_contiguous_cache_goes_to_the_libraries_as_rows_and_not_as_pages() -> None:
    kv = paged(1, 40)
    operator = Recorded()
    attend(launch_of(Fa2Attention, operator), kv)
    assert torch.equal(operator.arguments[8], kv.table_BM[:, 0])  # type: ignore[arg-type]
    assert operator.arguments[10] is None
    attend(launch_of(Fa3Attention, operator), kv)
    assert operator.named is not None
    assert "page_table" not in operator.named
    assert torch.equal(operator.named["kv_batch_idx"], kv.table_BM[:, 0])  # type: ignore[arg-type]


def test_fa3_is_handed_pages_of_any_size_and_may_be_left_its_own_rule() -> None:
    operator, kv = Recorded(), paged(2, 16)
    out, splits = attend(launch_of(Fa3Attention, operator), kv, splits=OWN_RULE)
    assert splits == 0
    assert bool((out == 1).all())
    assert operator.named is not None
    assert operator.named["page_table"] is kv.table_BM
    assert operator.named["seqused_k"] is kv.lengths_B
    assert operator.named["num_splits"] == 0
    assert operator.named["softmax_scale"] == 0.25


def test_pages_that_flash_attention_2_cannot_read_are_refused() -> None:
    with pytest.raises(ValueError, match="256 slots or a multiple, not 128"):
        attend(launch_of(Fa2Attention, Recorded()), paged(2, 128))


@pytest.mark.parametrize("kind", [Fa2Attention, Fa3Attention])
def test_fp32_and_heads_that_do_not_divide_are_refused(kind: type) -> None:
    launch = launch_of(kind, Recorded())
    with pytest.raises(ValueError, match="16 bits"):
        attend(launch, paged(1, 256, dtype=torch.float32))
    with pytest.raises(ValueError, match="do not divide"):
        attend(launch, paged(1, 256), heads=3)


def test_our_own_attention_needs_a_count() -> None:
    kv = paged(2, 256, dtype=torch.float32)
    plan = plan_splits(512, 256, OWN_RULE)
    q = torch.zeros(2, 4, 16)
    with pytest.raises(ValueError, match="no split rule of its own"):
        attention_by("torch")(q, kv, plan, torch.empty_like(q), Workspace(1, 2, 4, 16, q.device))


def test_the_decoder_decodes_the_same_by_the_triton_kernel_and_by_the_plain_form() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    asked = {"prompt_tokens": "40", "output_tokens": "8", "round_steps": "7", "rounds": "3"}
    asked |= {"concurrency": "1", "ttft_tokens": "16"}
    parameters = DECODE.resolve(asked, DeviceFacts("cpu", "some CPU", 2**34))
    streams = []
    for setting in ("off", "triton"):
        session = open_session(parameters, "cpu", 1, "engine")
        with engaged(LEVER, session.sites, setting):
            outputs = session.outputs({"want": "tokens", "prompts": 1, "max_tokens": 3})
        streams.append(outputs.streams)
    assert streams[0] == streams[1]
