"""How long one sample takes, estimated before anything runs (torch-free).

A budget is held against this before the first process: an estimate far above the truth refuses runs
that fit, so it follows the model and the lengths. On an H200 a captured step of 28 blocks takes 2.4
to 4.3 ms and one of 36 blocks 4.7 to 7.4 (1 to 32 sequences of 2,048 tokens).
"""

from __future__ import annotations

from collections.abc import Mapping

from experiments.values import Scalar
from experiments.workloads.decode.config import ModelConfig
from experiments.workloads.decode.parameters import parsed_concurrency

CPU_SAMPLE_S = 3.0
"""Of the default sizes on a CPU."""

START_S = 3.0
"""A forked process: context, weights, kernels, captures."""

BLOCK_S = {"on": 65e-6, "off": 200e-6}
"""One block of a step, captured and launched from Python, where its bytes do not take longer."""

BYTES_PER_S = 3.5e12
"""At which a step gets its bytes, four fifths of the copy rate."""

FLOP_PER_S = 2e14
"""Of a prefill, about a quarter of the bf16 rate."""

WARM_STEPS = 3

TIME_LIMIT_S = 600.0
"""A process on CUDA that takes longer hangs: the oracle's compiler, with nothing kept yet, takes
minutes for six concurrencies."""


def seconds_per_sample(
    parameters: Mapping[str, Scalar], config: ModelConfig, device_type: str
) -> float:
    """Seconds of one sample of an arm, its start included."""
    if device_type != "cuda":
        return CPU_SAMPLE_S
    prompt, rounds = _number(parameters, "prompt_tokens"), _number(parameters, "rounds")
    steps = rounds * (1 + _number(parameters, "round_steps")) + WARM_STEPS
    launches_s = config.num_layers * BLOCK_S[str(parameters["graph"])]
    counts = parsed_concurrency(str(parameters["concurrency"]))
    decode_s = sum(steps * (launches_s + _bytes(config, c, prompt) / BYTES_PER_S) for c in counts)
    prefilled = max(counts) * prompt + (
        _number(parameters, "ttft_repeats") * _number(parameters, "ttft_tokens")
    )
    return START_S + decode_s + 2 * config.parameters * prefilled / FLOP_PER_S


def _bytes(config: ModelConfig, count: int, prompt: int) -> int:
    return config.weight_bytes_read + count * prompt * config.kv_bytes_per_token


def _number(parameters: Mapping[str, Scalar], name: str) -> int:
    return int(parameters[name] or 0)
