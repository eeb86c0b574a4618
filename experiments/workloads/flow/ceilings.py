"""What the device can do: measured rates of a large matrix product and of attention."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from experiments.workloads.flow.config import FlowConfig
from experiments.workloads.flow.flop import attention_forward_flop
from experiments.workloads.flow.peaks import dense_peak_flop_per_s
from experiments.workloads.flow.precision import PRECISIONS
from experiments.workloads.flow.step import synchronise

REPEATS = 5


@dataclass(frozen=True, slots=True)
class ProbeShape:
    """Sizes of the probes: large enough to reach the ceiling, small enough to be quick."""

    matmul: int
    batch: int
    tokens: int
    heads: int
    head_dim: int


ON_CUDA = ProbeShape(matmul=8192, batch=8, tokens=4096, heads=12, head_dim=128)
ON_CPU = ProbeShape(matmul=1024, batch=1, tokens=512, heads=2, head_dim=64)


def shape_for(device: torch.device | str) -> ProbeShape:
    """The probe of this kind of device."""
    return ON_CUDA if torch.device(device).type == "cuda" else ON_CPU


def median_seconds(work: Callable[[], object], device: torch.device | str) -> float:
    """Median over a few runs, each waited for; two runs before them are not counted."""
    times = []
    for _ in range(REPEATS + 2):
        synchronise(device)
        start = time.perf_counter()
        work()
        synchronise(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])


def matmul_flop_per_s(config: FlowConfig, device: torch.device | str) -> float:
    """Rate of one large square product in the dtype that the step multiplies in."""
    n, dtype = shape_for(device).matmul, PRECISIONS[config.matmul].matmul
    a = torch.randn(n, n, device=device, dtype=dtype)
    b = torch.randn(n, n, device=device, dtype=dtype)
    return 2.0 * n**3 / median_seconds(lambda: a @ b, device)


def attention_flop_per_s(config: FlowConfig, device: torch.device | str) -> float:
    """Best rate of PyTorch's fused attentions, forward and backward counted as 3 forwards."""
    shape, dtype = shape_for(device), PRECISIONS[config.matmul].matmul
    size = (shape.batch, shape.heads, shape.tokens, shape.head_dim)
    q, k, v = (torch.randn(size, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    flop = 3 * shape.batch * attention_forward_flop(shape.tokens, 0, shape.heads * shape.head_dim)
    return max(flop / _attention_seconds(backend, q, k, v) for backend in _backends(device))


def _backends(device: torch.device | str) -> tuple[SDPBackend, ...]:
    """Flash everywhere; cuDNN's too where the device has tensor cores of its generation."""
    where = torch.device(device)
    if where.type == "cuda" and torch.cuda.get_device_capability(where) >= (9, 0):
        return SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION
    return (SDPBackend.FLASH_ATTENTION,)


def _attention_seconds(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor) -> float:
    def work() -> None:
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(q, k, v)
        torch.autograd.grad(out, (q, k, v), out)

    return median_seconds(work, q.device)


def stated_peak_flop_per_s(config: FlowConfig, device: torch.device | str) -> float | None:
    """The maker's dense rate of the step's matmul dtype, or None where none is known."""
    where = torch.device(device)
    if where.type != "cuda" or config.matmul != "bf16":
        return None
    return dense_peak_flop_per_s(torch.cuda.get_device_name(where))


def peak_flop_per_s(config: FlowConfig, device: torch.device | str) -> float:
    """What an MFU is a share of: the stated rate, or else the measured rate of a large product."""
    return stated_peak_flop_per_s(config, device) or matmul_flop_per_s(config, device)
