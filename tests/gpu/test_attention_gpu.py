"""The attention backends on a CUDA device: against fp64, in a training step, and their rates."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from experiments.parity.op_case import check_case
from experiments.parity.op_judge import Bar
from experiments.workloads import catalog as workloads
from experiments.workloads.base import DeviceFacts
from experiments.workloads.flow.session import TrainingSession, open_session
from levers.attn_backend import LEVER, SITE
from levers.base import OFF, OpCase, engaged
from levers.cached_cu_seqlens import LEVER as CACHED
from levers.cached_cu_seqlens import SITE as CU_SEQLENS
from levers.kernels.attn_backend import Layout, PackedAttention
from levers.kernels.attn_backend_cases import Launch, Samples, by_flash
from levers.kernels.attn_backend_needs import NEEDS, missing_packages
from levers.policy import ParityClass

CUDA = torch.cuda.is_available()

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not CUDA, reason="needs a CUDA device"),
    # Packages of others warn while they are imported and compiled.
    pytest.mark.filterwarnings("default"),
]

HEADS, DIM = 12, 128
PACKED = (5601, 1863, 601, 3125, 1159, 960, 2830, 3673)
"""19,812 tokens in 8 samples."""
DENSE = (4096,) * 8
CONDITION = (2056,) * 8
SHAPES = {
    "packed self": (PACKED, PACKED),
    "packed on 8 x 2056": (PACKED, CONDITION),
    "dense 8 x 4096": (DENSE, DENSE),
}
REPEATS = 10

FORWARD_AND_BACKWARD = 3.5
"""In forwards: five products to two, as flash-attention's own benchmarks count."""

SHORT = {"size": "xl", "depth": "2", "bs": "2", "steps": "3", "warmup": "2"}


def missing(backend: str) -> str:
    """Why the backend cannot run here, or nothing."""
    if not CUDA:
        return "needs a CUDA device"
    capability, need = torch.cuda.get_device_capability(), NEEDS[backend]
    if not need.least <= capability < need.below:
        return f"no kernels for compute capability {capability}"
    return "; ".join(missing_packages(backend))


def backend_or_skip(backend: str) -> str:
    reason = missing(backend)
    if reason:
        pytest.skip(reason)
    return backend


def cases() -> list[OpCase]:
    if not CUDA:
        return []
    return [case for name in NEEDS if not missing(name) for case in LEVER.op_cases(name, "cuda")]


def ids() -> list[str]:
    return [
        f"{name}, {case.name}"
        for name in NEEDS
        if CUDA and not missing(name)
        for case in LEVER.op_cases(name, "cuda")
    ]


@pytest.mark.parametrize("case", cases(), ids=ids())
def test_every_backend_is_as_near_to_fp64_as_flash_attention_2(case: OpCase) -> None:
    result = check_case(case, 0, Bar())
    assert result.status == "passed", result.fault
    assert result.parity.satisfies(ParityClass.LOSSLESS)
    assert result.powerless == ()


def session(workload: str = "slat_flow", **more: str) -> TrainingSession:
    device = DeviceFacts("cuda", torch.cuda.get_device_name(), 0)
    parameters = workloads.get(workload).resolve({**SHORT, **more}, device)
    found = open_session(parameters, "cuda:0", 5, "engine")
    assert isinstance(found, TrainingSession)
    return found


@pytest.mark.parametrize("workload", ["slat_flow", "ss_flow"])
@pytest.mark.parametrize("backend", NEEDS)
def test_a_step_runs_on_the_backend_and_leaves_the_loss(backend: str, workload: str) -> None:
    losses, plans = {}, {}
    for setting in (OFF, backend_or_skip(backend)):
        one = session(workload)
        with engaged(LEVER, one.sites, setting):
            losses[setting] = float(one.step().run())
            one.exercise()
            plans[setting] = LEVER.witness(one.sites[SITE])["train/tok_s"]
    assert plans[backend] != plans[OFF]
    assert plans[backend].endswith("AttentionBackward x 4")
    assert losses[backend] == pytest.approx(losses[OFF], rel=2e-3)


def test_kept_offsets_give_the_same_step() -> None:
    losses, plans = {}, {}
    for setting in (OFF, "on"):
        one = session()
        with engaged(CACHED, one.sites, setting):
            losses[setting] = float(one.step().run())
            one.exercise()
            plans[setting] = CACHED.witness(one.sites[CU_SEQLENS])["train/tok_s"]
    assert plans == {OFF: "rebuilt x 8", "on": "kept x 8"}
    assert losses["on"] == losses[OFF]


def median_s(work: Callable[[], object]) -> float:
    """Median time by events on the device; three runs before them are not counted."""
    times = []
    for _ in range(REPEATS + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times[3:])


def rates(launch: Launch, queries: Layout, keys: Layout) -> tuple[float, float]:
    """TFLOP/s of the forward, and of forward and backward."""
    rows = (sum(queries.lengths), sum(keys.lengths))
    like = {"device": "cuda", "dtype": torch.bfloat16}
    q = torch.randn(rows[0], HEADS, DIM, requires_grad=True, **like)  # type: ignore[arg-type]
    kv = torch.randn(rows[1], 2, HEADS, DIM, **like)  # type: ignore[arg-type]
    k, v = (one.requires_grad_() for one in kv.unbind(1))
    grad = torch.randn_like(q)
    pairs = zip(queries.lengths, keys.lengths, strict=True)
    flop = 4.0 * HEADS * DIM * sum(n * m for n, m in pairs)

    def forward() -> Tensor:
        with torch.no_grad():
            return launch(q, k, v, queries, keys)

    def both() -> object:
        return torch.autograd.grad(launch(q, k, v, queries, keys), (q, k, v), grad)

    forward_s, both_s = median_s(forward), median_s(both)
    return flop / forward_s / 1e12, FORWARD_AND_BACKWARD * flop / both_s / 1e12


def test_rates_of_every_backend_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{'TFLOP/s, 12 heads of 128':26}{'backend':14}{'forward':>9}{'both':>9}"]
    seen: dict[tuple[str, str], tuple[float, float]] = {}
    for shape, (queries, keys) in SHAPES.items():
        layouts = Samples.of(queries, "cuda"), Samples.of(keys, "cuda")
        names = [name for name in NEEDS if not missing(name)]
        launches = {"per sample": by_flash, **{name: PackedAttention(name) for name in names}}
        for name, launch in launches.items():
            seen[shape, name] = rates(launch, *layouts)
            lines.append(f"{shape:26}{name:14}" + "".join(f"{r:9.0f}" for r in seen[shape, name]))
    with capsys.disabled():
        print("\n" + "\n".join(lines))
    assert all(0 < rate < 989.4 for pair in seen.values() for rate in pair)
