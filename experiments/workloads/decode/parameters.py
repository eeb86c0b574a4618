"""The parameters of the decode workload: ranges, choices and defaults by device (torch-free)."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.values import Scalar
from experiments.workloads.base import DeviceFacts
from experiments.workloads.decode.config import ModelConfig
from experiments.workloads.decode.folder import is_random
from levers.errors import BadParameter
from levers.kernels.split_heuristic import kv_block_tokens

PROMPT_COUNT = 184
"""Number of fixed prompts (the published token battery decodes 184)."""
RANGES = {
    "prompt_tokens": (16, 131072),
    "output_tokens": (2, 16384),
    "rounds": (1, 1000),
    "round_steps": (1, 16383),
    "ttft_repeats": (20, 1000),
    "ttft_tokens": (1, 131072),
    "page_size": (16, 1024),
    "kv_block": (16, 1024),
    "sm_count": (1, 1024),
    "threads": (1, 256),
}
"""Integer parameters and their ranges; a p95 of TTFT needs 20 requests. With more ``ttft_tokens``
than ``prompt_tokens`` these requests have prompts of their own (:mod:`.arrivals`)."""
CHOICES = {
    "attn": ("torch", "triton"),
    "graph": ("on", "off"),
    "kv": ("paged", "contiguous"),
    "quality": ("off", "on"),
}
"""``quality`` adds the held-out loss of a trained model as an axis; it costs a few prefills."""

CPU_SM_COUNT = 48
"""SMs that the split rule is told of on a CPU: those of the device of the published report."""
CPU_KV_BLOCK = 128
"""KV block on the CPU, so that prompts of about 900 tokens have 7 blocks, as published."""


CUDA_ROUND_STEPS = 16
"""Steps of a concurrency in a round on CUDA. What differs between two processes is the process: on
an H200 the noise of a pair was 0.5 to 0.9 % on tok/s whether 8, 16, 32 or 64 steps of each were
counted (six pairs), with 0.5 % between the steps of one process. Two rounds leave a p95 of the gaps
enough of them (noise 0.7 to 1.3 % with 32, 0.7 to 1.1 % with 64), and an eager arm, at 17 ms a
step, does the same work as a captured one without waiting for figures that nobody needs."""
CUDA_TTFT_TOKENS = 1792
"""The most whole KV blocks that each of 32 ragged prompts of 2,048 tokens has: one length for all
requests, as each new one costs tens of milliseconds at its first uses."""


def defaults(device: DeviceFacts, config: ModelConfig) -> Mapping[str, Scalar]:
    """Every parameter but the model.

    On the CPU a prompt and its output stay inside 7 KV blocks of 128, one thread is used (quieter
    than two on a shared machine), and a sample takes a few seconds.
    """
    if device.device_type == "cpu":
        return {
            "device_type": "cpu",
            "concurrency": "1,2,4,8",
            "prompt_tokens": 832,
            "output_tokens": 48,
            "rounds": 4,
            "round_steps": 6,
            "ttft_repeats": 260,
            "ttft_tokens": 64,
            "page_size": CPU_KV_BLOCK,
            "kv_block": CPU_KV_BLOCK,
            "sm_count": CPU_SM_COUNT,
            "threads": 1,
            "attn": "torch",
            "graph": "off",
            "kv": "paged",
            "quality": "off",
        }
    return {
        "device_type": "cuda",
        "concurrency": "1,2,4,8,16,32",
        "prompt_tokens": 2048,
        "output_tokens": 128,
        "rounds": 2,
        "round_steps": CUDA_ROUND_STEPS,
        "ttft_repeats": 24,
        "ttft_tokens": CUDA_TTFT_TOKENS,
        "page_size": 128,
        "kv_block": kv_block_tokens(config.head_dim),
        "sm_count": max(1, device.sm_count),
        "threads": 4,
        "attn": "triton",
        "graph": "on",
        "kv": "paged",
        "quality": "off",
    }


def weighs(parameters: Mapping[str, Scalar]) -> bool:
    """Whether the stored weights are an axis: where a lever that stores them otherwise is judged.

    That is with the quality of a trained model, or with random weights, which have none.
    """
    return parameters["quality"] == "on" or is_random(str(parameters["model"]))


def parsed_concurrency(text: str, what: str = "decode: concurrency =") -> tuple[int, ...]:
    """The concurrencies of a list such as ``1,2,4,8``, ascending.

    Args:
        text: the list.
        what: the words before it where it cannot be read.

    Raises:
        BadParameter: not a list of different integers from 1 to the number of fixed prompts.
    """
    try:
        counts = sorted({int(part) for part in str(text).split(",")})
    except ValueError:
        counts = []
    if not counts or counts[0] < 1 or counts[-1] > PROMPT_COUNT:
        raise BadParameter(
            f"{what} {text!r}",
            cure=f"use a list such as 1,2,4,8 (at most {PROMPT_COUNT})",
        )
    return tuple(counts)
