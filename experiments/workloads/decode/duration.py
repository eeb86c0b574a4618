"""How long one sample takes, estimated before anything runs (torch-free).

A budget is held against this before the first process: an estimate far above the truth refuses runs
that fit, and one far below it begins what the time cannot hold, so it follows the model, the
lengths and the mode. Seen on H200 hosts at 0.6 B, six concurrencies, 2,048 tokens: a captured step
2.4 to 4.4 ms, an eager one 17 at each of them (33 s a sample of 1,560 steps, where a captured one
took 10), 0.3 s from a fork to an open session, 3.4 to 4.6 s of warm-up.
"""

from __future__ import annotations

from collections.abc import Mapping

from experiments.values import Scalar
from experiments.workloads.decode.config import ModelConfig
from experiments.workloads.decode.oracle_names import OracleName
from experiments.workloads.decode.parameters import parsed_concurrency

CPU_SAMPLE_S = 3.0
"""Of the default sizes on a CPU."""

START_S = 3.2
"""A forked process: context, weights, kernels, memory for new shapes."""

CAPTURED_BLOCK_S = 65e-6
"""One block of a replayed step, beside the bytes that it reads."""

EAGER_BLOCK_S = 600e-6
"""The launches of one block from Python, in a step or a prefill: 0.36 ms on a quiet host, 0.6 with
two measurements side by side."""

BYTES_PER_S = 3.5e12
"""At which a step gets its bytes, four fifths of the copy rate."""

FLOP_PER_S = 2e14
"""Of a prefill, about a quarter of the bf16 rate."""

WARM_STEPS, WARM_REQUESTS = 4, 4
CAPTURE_STEPS = 3
"""Eager steps around a capture."""
REQUESTS_A_TURN = 3
"""Timed requests beside each untimed one."""

TRANSFORMERS_S = 7.0
"""Imports, model, and eager prefills, beyond those of an arm."""

COMPILE_BLOCK_S = 1.1
"""One block compiled for one concurrency with nothing kept: 73 s for 28 blocks at two of them."""

TRACE_BLOCK_S = 0.3
"""The same where an earlier process has left the kernels: tracing is done anew in each process. (In
a rehearsal of 28 blocks on a CPU 15 s of 98, of these 10 to 13 tracing.)"""

SERVER_S = 60.0
"""The start of a server; it is not known before it was seen."""

TIME_LIMIT_S = 600.0
"""A process on CUDA that takes longer hangs: the oracle's compiler, with nothing kept yet, takes
minutes for six concurrencies."""


def seconds_per_sample(
    parameters: Mapping[str, Scalar], config: ModelConfig, device_type: str
) -> float:
    """Seconds of one sample of an arm, its start included; a lever that captures takes less."""
    if device_type != "cuda":
        return CPU_SAMPLE_S
    captured = parameters["graph"] == "on"
    counts = parsed_concurrency(str(parameters["concurrency"]))
    capturing_s = CAPTURE_STEPS * config.num_layers * EAGER_BLOCK_S * len(counts)
    decode_s = _steps_s(parameters, config, counts, captured=captured)
    prefilled_s = max(counts) * _prefill_s(config, _number(parameters, "prompt_tokens"))
    found = START_S + decode_s + prefilled_s + _requests_s(parameters, config)
    return found + capturing_s if captured else found


def oracle_seconds(
    parameters: Mapping[str, Scalar], config: ModelConfig, device_type: str, oracle: OracleName
) -> tuple[float, float]:
    """Seconds of an oracle's sample in its first process and in later ones, starts included."""
    captured = {**parameters, "graph": "on"} if device_type == "cuda" else parameters
    plain_s = seconds_per_sample(captured, config, device_type)
    if oracle.kind == "server":
        return plain_s + SERVER_S, plain_s + SERVER_S
    if oracle.kind != "transformers" or device_type != "cuda":
        return plain_s, plain_s
    every = parsed_concurrency(str(parameters["concurrency"]))
    counts = oracle.concurrency(every)
    left_out = tuple(count for count in every if count not in counts)
    base_s = plain_s - _steps_s(parameters, config, left_out, captured=True) + TRANSFORMERS_S
    blocks = config.num_layers * len(counts)
    return base_s + blocks * COMPILE_BLOCK_S, base_s + blocks * TRACE_BLOCK_S


def _steps_s(
    parameters: Mapping[str, Scalar],
    config: ModelConfig,
    counts: tuple[int, ...],
    *,
    captured: bool,
) -> float:
    """Launches add to the reading where the device does both; an eager host launches meanwhile."""
    prompt = _number(parameters, "prompt_tokens")
    steps = _number(parameters, "rounds") * (1 + _number(parameters, "round_steps")) + WARM_STEPS
    read_s = [_bytes(config, count, prompt) / BYTES_PER_S for count in counts]
    if captured:
        return steps * sum(config.num_layers * CAPTURED_BLOCK_S + one for one in read_s)
    return steps * sum(max(config.num_layers * EAGER_BLOCK_S, one) for one in read_s)


def _requests_s(parameters: Mapping[str, Scalar], config: ModelConfig) -> float:
    repeats = _number(parameters, "ttft_repeats")
    requests = repeats + -(-repeats // REQUESTS_A_TURN) + WARM_REQUESTS
    return requests * _prefill_s(config, _number(parameters, "ttft_tokens"))


def _prefill_s(config: ModelConfig, tokens: int) -> float:
    """The host's launches or the device's work, whichever takes longer."""
    return max(config.num_layers * EAGER_BLOCK_S, 2 * config.parameters * tokens / FLOP_PER_S)


def _bytes(config: ModelConfig, count: int, prompt: int) -> int:
    return config.weight_bytes_read + count * prompt * config.kv_bytes_per_token


def _number(parameters: Mapping[str, Scalar], name: str) -> int:
    return int(parameters[name] or 0)
