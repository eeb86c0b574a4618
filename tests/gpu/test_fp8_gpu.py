"""The 8-bit Linear on a CUDA device: quantiser, products, op cases, a training step, rates."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.parity.op_case import check_case
from experiments.parity.op_judge import Bar
from experiments.workloads import catalog as workloads
from experiments.workloads.base import DeviceFacts
from experiments.workloads.flow.session import TrainingSession, open_session
from levers.base import OFF, OpCase, engaged
from levers.fp8_linear import LEVER, SITE, TOLERANCE
from levers.kernels.fp8_linear import (
    E4M3,
    E5M2,
    LEAST_CAPABILITY,
    Fp8Product,
    product,
    quantise,
    quantise_torch,
)
from levers.policy import ParityClass

READY = torch.cuda.is_available() and torch.cuda.get_device_capability() >= LEAST_CAPABILITY

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not READY, reason="needs a CUDA device with 8-bit tensor cores"),
]

TOKENS = 19_812
SIDES = {
    "qkv": (1536, 4608),
    "out": (1536, 1536),
    "kv": (1024, 3072),
    "up": (1536, 8192),
    "down": (8192, 1536),
}
"""Inputs and outputs of the block's Linears at 1.3 B."""
REPEATS = 10
SHORT = {"size": "xl", "depth": "2", "bs": "2", "steps": "3", "warmup": "2"}


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 3) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cuda").to(dtype)


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("source", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1536), (2051, 1536), (TOKENS, 8192)])
def test_the_quantiser_gives_what_plain_pytorch_gives(
    dtype: torch.dtype, source: torch.dtype, rows: int, columns: int
) -> None:
    x = normal(rows, columns, dtype=source)
    found = quantise(x, dtype, turn=True, sums=True)
    same = quantise_torch(x, dtype, turn=True, sums=True)
    assert found.turned is not None
    assert found.sums is not None
    assert same.turned is not None
    assert float(found.scale) == pytest.approx(float(same.scale), rel=1e-6)
    torch.testing.assert_close(found.sums, x.double().sum(0).float(), rtol=1e-4, atol=1e-2)
    # A division that is off by a unit in the last place of fp32 may decide a tie the other way.
    differing = found.values.view(torch.uint8) != same.values.view(torch.uint8)
    assert float(differing.float().mean()) < 1e-3
    assert torch.equal(found.turned.float()[:, :rows], found.values.float().t())
    assert not found.turned.float()[:, rows:].any()


def test_the_quantiser_repeats_itself_and_keeps_nan() -> None:
    x = normal(4099, 1536)
    x[7, 3], x[4098, 1535] = torch.nan, torch.inf
    first = quantise(x, E4M3, turn=True)
    assert torch.equal(~torch.isfinite(first.values.float()), ~torch.isfinite(x))
    for _ in range(5):
        again = quantise(x, E4M3, turn=True)
        assert torch.equal(again.values.view(torch.uint8), first.values.view(torch.uint8))
        assert torch.equal(again.scale, first.scale)


@pytest.mark.parametrize("gradients", [E4M3, E5M2])
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("out", [torch.bfloat16, torch.float32])
def test_the_products_sum_their_8_bit_values_right(
    gradients: torch.dtype, fast: bool, out: torch.dtype
) -> None:
    left = quantise(normal(2051, 1536), gradients, turn=True)
    right = quantise(normal(3072, 1536, seed=4), E4M3, turn=False)
    found = product(left.values, left.scale, right.values, right.scale, out, fast=fast)
    truth = left.values.double() @ right.values.double().t()
    truth *= left.scale.double() * right.scale.double()
    limit = 2.0**-8 if out == torch.bfloat16 or fast else 2.0**-11
    assert float((found.double() - truth).norm() / truth.norm()) < limit


@pytest.mark.parametrize(
    "case",
    [one for name in ("e4m3", "e5m2") for one in LEVER.op_cases(name, "cuda")] if READY else [],
    ids=lambda case: case.name,
)
def test_every_case_is_inside_the_tolerance(case: OpCase) -> None:
    result = check_case(case, 0, Bar(tolerance=TOLERANCE.relative_error))
    assert result.status == "passed", result.fault
    assert result.parity is ParityClass.TOLERATED
    assert result.powerless == ()


@pytest.mark.parametrize("workload", ["slat_flow", "ss_flow"])
@pytest.mark.parametrize("setting", ["e4m3", "e5m2"])
def test_a_step_runs_in_8_bits_and_moves_the_loss_little(setting: str, workload: str) -> None:
    device = DeviceFacts("cuda", torch.cuda.get_device_name(), 0)
    parameters = workloads.get(workload).resolve(SHORT, device)
    losses, plans = {}, {}
    for one in (OFF, setting):
        session = open_session(parameters, "cuda:0", 5, "engine")
        assert isinstance(session, TrainingSession)
        with engaged(LEVER, session.sites, one):
            losses[one] = float(session.step().run())
            session.exercise()
            plans[one] = LEVER.witness(session.sites[SITE])["train/tok_s"]
    assert plans[setting] == "backward=Fp8LinearBackward x 14"
    assert losses[setting] == pytest.approx(losses[OFF], rel=0.02)


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


def autocast(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The original on CUDA."""
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return F.linear(x, weight, bias)


def test_rates_are_printed_beside_bf16(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{'TFLOP/s at 19812 rows':24}{'forward':>9}{'both':>9}"]
    launches = {"bf16": autocast, "e4m3": Fp8Product(autocast, E4M3)}
    for name, (inputs, outputs) in SIDES.items():
        x = normal(TOKENS, inputs).requires_grad_()
        weight = normal(outputs, inputs, dtype=torch.float32).requires_grad_()
        bias = normal(outputs, dtype=torch.float32).requires_grad_()
        grad, flop = normal(TOKENS, outputs), 2.0 * TOKENS * inputs * outputs
        for label, launch in launches.items():

            def both(launch=launch, given=(x, weight, bias), grad=grad) -> object:  # type: ignore[no-untyped-def]
                return torch.autograd.grad(launch(*given), given, grad)

            forward_s = median_s(lambda launch=launch, given=(x, weight, bias): launch(*given))  # type: ignore[misc]
            pair = flop / forward_s / 1e12, 3 * flop / median_s(both) / 1e12
            lines.append(f"{name + ' ' + label:24}" + "".join(f"{rate:9.0f}" for rate in pair))
    for columns in (1536, 8192):
        x = normal(TOKENS, columns)
        seconds = median_s(lambda x=x: quantise(x, E4M3, turn=True))  # type: ignore[misc]
        lines.append(
            f"quantise {columns}: {seconds * 1e6:.0f} us, {6 * x.numel() / seconds / 1e9:.0f} GB/s"
        )
    with capsys.disabled():
        print("\n" + "\n".join(lines))
    assert len(lines) == 1 + 2 * len(SIDES) + 2
