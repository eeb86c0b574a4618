"""The backends of the decode attention on a CUDA device: against fp64, captured, in the workload.

Flash-attention 2 and 3 are left out where they are not installed.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from experiments.parity.op_case import check_case
from experiments.parity.op_judge import Bar
from experiments.workloads.base import DeviceFacts
from experiments.workloads.decode.session import DecodeSession, open_session
from experiments.workloads.decode.workload import DECODE
from levers.base import OFF, OpCase, engaged
from levers.decode_attn import LEVER, SITE
from levers.errors import BadParameter
from levers.fa2_nsplits_cap import LEVER as CAP
from levers.kernels.decode_attn import attention_by
from levers.kernels.decode_attn_needs import missing_package
from levers.kernels.split_heuristic import DecodeShape
from levers.kernels.split_kv import PagedKV, Workspace, decode_attention, plan_splits, truth
from levers.kernels.split_kv_cases import KV_HEADS
from levers.kernels.split_kv_config import CANDIDATES, SplitConfig
from levers.kernels.tuned_splits import table_of, tuned_splits
from levers.policy import ParityClass

CUDA = torch.cuda.is_available()

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not CUDA, reason="needs a CUDA device"),
    # Packages of others warn while they are imported.
    pytest.mark.filterwarnings("default"),
]

BACKENDS = ("triton", "fa2", "fa3")
CAPACITY = 4096
LENGTHS = (4096, 1, 129, 2000)
SHORT = {
    "prompt_tokens": "512",
    "output_tokens": "32",
    "rounds": "1",
    "round_steps": "24",
    "ttft_repeats": "20",
    "concurrency": "1,4",
}


def there(backend: str) -> str:
    reasons = missing_package(backend)
    if backend == "fa3" and torch.cuda.get_device_capability()[0] != 9:
        reasons = ("FlashAttention-3 is built for compute capability 9.x",)
    if reasons:
        pytest.skip(reasons[0])
    return backend


def filled(
    group: int, page: int, dim: int = 128, unused: float = 3e4
) -> tuple[torch.Tensor, PagedKV]:
    """Random pages in random order; slots beyond a length hold ``unused``."""
    draw = torch.Generator("cuda").manual_seed(group)
    per_slot = CAPACITY // page
    pages = len(LENGTHS) * per_slot
    table = torch.randperm(pages, device="cuda", generator=draw).view(len(LENGTHS), per_slot)
    shape = (pages, KV_HEADS, page, dim)
    k, v = (torch.randn(shape, device="cuda", generator=draw, dtype=torch.bfloat16) for _ in "kv")
    for row, length in enumerate(LENGTHS):
        for x in (k, v):
            x[table[row, length // page :][1:]] = unused
            if length < CAPACITY:
                x[table[row, length // page], :, length % page :] = unused
    heads = KV_HEADS * group
    q = torch.randn(len(LENGTHS), heads, dim, device="cuda", generator=draw).bfloat16()
    return q, PagedKV(k, v, table.to(torch.int32), torch.tensor(LENGTHS, device="cuda").int())


def relative_error(out: torch.Tensor, q: torch.Tensor, kv: PagedKV) -> float:
    true = truth(q, kv)
    return float((out.double() - true).norm() / true.norm())


@pytest.mark.parametrize("config", CANDIDATES, ids=lambda config: config.name)
@pytest.mark.parametrize("group", [2, 4])
@pytest.mark.parametrize("splits", [1, 5, 16, 32])
def test_every_layout_of_our_kernel_gives_the_attention_again_and_again(
    config: SplitConfig, group: int, splits: int
) -> None:
    q, kv = filled(group, 128, unused=math.nan)
    workspace = Workspace(splits, *q.shape, q.device)
    plan = plan_splits(CAPACITY, 128, splits)
    outs = []
    for _ in range(3):
        out = torch.full_like(q, math.nan)
        decode_attention(q, kv, plan, out, workspace, "triton", config)
        outs.append(out)
    assert relative_error(outs[0], q, kv) < 4e-3
    assert all(torch.equal(outs[0], out) for out in outs[1:])
    assert not bool(workspace.arrived_BH.any())


@pytest.mark.parametrize("merge", ["launch", "last"])
def test_the_last_program_sees_what_all_others_left(merge: str) -> None:
    q, kv = filled(4, 128)
    config = SplitConfig(merge=merge)  # type: ignore[arg-type]
    workspace = Workspace(32, *q.shape, q.device)
    plan, out, first = plan_splits(CAPACITY, 128, 32), torch.empty_like(q), None
    for _ in range(2000):
        out.fill_(math.nan)
        decode_attention(q, kv, plan, out, workspace, "triton", config)
        first = out.clone() if first is None else first
        torch.testing.assert_close(out, first, rtol=0, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("page", [256, CAPACITY])
@pytest.mark.parametrize("group", [1, 2, 4, 8])
@pytest.mark.parametrize("splits", [1, 3, 16])
def test_a_captured_launch_gives_what_an_eager_one_does(
    backend: str, page: int, group: int, splits: int
) -> None:
    launch = attention_by(there(backend))
    q, kv = filled(group, page)
    out, workspace = torch.empty_like(q), Workspace(splits, *q.shape, q.device)
    plan = plan_splits(CAPACITY, 128, splits)
    launch(q, kv, plan, out, workspace)
    assert relative_error(out, q, kv) < 4e-3
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert launch(q, kv, plan, out, workspace) == splits
    for seed in range(3):
        q.normal_(generator=torch.Generator("cuda").manual_seed(seed))
        kv.lengths_B.copy_(torch.tensor([4096 - seed, 1 + seed, 128 + seed, 2000]))
        out.fill_(math.nan)
        graph.replay()
        captured = out.clone()
        out.fill_(math.nan)
        launch(q, kv, plan, out, workspace)
        assert torch.equal(captured, out)
        assert bool(torch.isfinite(out).all())


def cases() -> list[tuple[str, OpCase]]:
    if not CUDA:
        return []
    return [
        (name, case)
        for name in BACKENDS
        if not missing_package(name)
        for case in LEVER.op_cases(name, "cuda")
    ]


@pytest.mark.parametrize(
    ("backend", "case"), cases(), ids=[f"{name}, {case.name}" for name, case in cases()]
)
def test_every_op_case_is_lossless(backend: str, case: OpCase) -> None:
    there(backend)
    result = check_case(case, 3, Bar())
    assert result.status == "passed", result.fault
    assert result.parity.satisfies(ParityClass.LOSSLESS)
    assert result.powerless == ()


def session(**changes: str) -> DecodeSession:
    found = torch.cuda.get_device_properties(0)
    device = DeviceFacts(
        "cuda:0", found.name, found.total_memory, sm_count=found.multi_processor_count
    )
    return open_session(DECODE.resolve({**SHORT, **changes}, device), "cuda:0", 1, "engine")


CACHES = ({"kv": "paged", "page_size": "256"}, {"kv": "contiguous"})


@pytest.mark.parametrize("cache", CACHES, ids=lambda cache: cache["kv"])
@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_the_workload_decodes_on_the_backend_as_on_its_own_attention(
    backend: str, cache: dict[str, str]
) -> None:
    there(backend)
    arguments = {"want": "tokens", "prompts": 4, "concurrency": 4}
    streams, plans = {}, {}
    for setting in (OFF, backend):
        one = session(**cache)
        with engaged(LEVER, one.sites, setting):
            streams[setting] = one.outputs(arguments).streams
            one.renew()
            one.warm_up()
            for site in one.sites.values():
                site.forget()
            one.exercise()
            plans[setting] = dict(LEVER.witness(one.sites[SITE]))
    assert set(plans[OFF].values()) == {"triton"}
    assert set(plans[backend].values()) == {backend}
    same = [one == other for one, other in zip(streams[OFF], streams[backend], strict=True)]
    assert sum(same) >= len(same) // 2  # of trained weights; the others leave at a near tie


@pytest.mark.parametrize("cache", CACHES, ids=lambda cache: cache["kv"])
@pytest.mark.parametrize("backend", BACKENDS[1:])
@pytest.mark.parametrize("setting", ["auto", "2"])
def test_the_cap_reaches_each_backend(backend: str, setting: str, cache: dict[str, str]) -> None:
    there(backend)
    one = session(**cache)
    with engaged(LEVER, one.sites, backend), engaged(CAP, one.sites, setting):
        one.warm_up()
        for site in one.sites.values():
            site.forget()
        one.exercise()
    plans = {plan for name in CAP.touches for plan in CAP.witness(one.sites[name]).values()}
    assert plans
    assert setting == "auto" or plans == {"num_splits=2"}


def test_tuned_counts_are_taken_where_this_device_was_measured() -> None:
    name, found = torch.cuda.get_device_name(), torch.cuda.get_device_properties(0)
    try:
        table = table_of(name, there("fa2"))
    except BadParameter as unknown:
        pytest.skip(str(unknown))
    row = max(table.rows, key=lambda row: row.rule_us / row.us)
    shape = DecodeShape(
        row.batch, table.kv_heads, row.tokens, table.kv_block, found.multi_processor_count
    )
    asked = replace(shape, backend="fa2", query_heads=row.query_heads)
    assert tuned_splits(asked, 1, name) == row.splits
