"""Public fault reports whose probes need a real GPU: a stray process, an autotuner's winners."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from experiments.compilations import CompilationCounter, autotune_winners
from experiments.environment import find_device
from experiments.telemetry import Sampler, probe_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

STRAY = """
import torch
x = torch.ones(1 << 26, device="cuda")
torch.cuda.synchronize()
print("up", flush=True)
input()
"""


@pytest.fixture
def stray() -> Iterator[subprocess.Popen[str]]:
    """A process that uses the GPU, took no lock and is none of ours."""
    process = subprocess.Popen(
        [sys.executable, "-c", STRAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    yield process
    process.communicate("\n", timeout=60)


# https://github.com/paiml/aprender/issues/3909
def test_a_stray_process_on_the_gpu_is_seen_by_a_look_at_the_idle_device(
    stray: subprocess.Popen[str],
) -> None:
    uuid = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    device = find_device(uuid if uuid.startswith("GPU-") else None)
    with Sampler(probe_for(device)) as sampler:
        seen = sampler.look(lambda: (1 << 22,), 1.0)
        listed = sampler.probe.now().processes  # type: ignore[attr-defined]
    assert stray.poll() is None
    if not listed:
        pytest.skip("the driver names no process here, so no foreign one can be told")
    assert int(seen["foreign_processes"] or 0) >= 1


TUNED = '''
"""A kernel with two configurations."""
import torch, triton
import triton.language as tl

@triton.autotune([triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256})], key=["n"])
@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

def run(n):
    x = torch.ones(n, device="cuda")
    y = torch.empty_like(x)
    double[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)
    return y
'''


# https://github.com/syv-ai/qwen38-27b-rtx3090/issues/75
def test_the_winner_of_a_real_autotuner_is_read_and_its_tuning_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "tuned_kernel.py"
    path.write_text(textwrap.dedent(TUNED))
    spec = importlib.util.spec_from_file_location("tuned_kernel", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    counter = CompilationCounter()
    before = counter.count()
    assert float(module.run(1000).sum()) == 2000
    assert counter.count() - before >= 2
    found = [best for name, best in autotune_winners().items() if name.startswith("double[")]
    assert len(found) == 1
    assert "BLOCK" in found[0]
    settled = counter.count()
    module.run(1000)
    assert counter.count() == settled
