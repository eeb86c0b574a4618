"""The torch-free description of the decode workload: parameters, axes, targets, needs."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.metrics import SAMPLES_FOR_P95
from experiments.values import Scalar
from experiments.workloads.base import DeviceFacts, Needs, Target
from experiments.workloads.decode.arrivals import have_own_cache
from experiments.workloads.decode.config import ModelConfig
from experiments.workloads.decode.duration import (
    TIME_LIMIT_S,
    oracle_seconds,
    seconds_per_sample,
)
from experiments.workloads.decode.folder import SHIPPED, is_random, model_config, model_digest
from experiments.workloads.decode.names import QUALITY, SITES, WEIGHT_BYTES, rate_axis
from experiments.workloads.decode.names import SPLIT_RULE as SPLIT_RULE
from experiments.workloads.decode.oracle_names import ORACLES, parsed_oracle, users_mode
from experiments.workloads.decode.parameters import (
    CHOICES,
    RANGES,
    defaults,
    parsed_concurrency,
    weighs,
)
from experiments.workloads.decode.token_parameters import token_settings
from levers.errors import BadParameter, UnknownName
from levers.policy import Axis

FIXED_AXES = (
    Axis("decode/ttft_ms/p50", "ms", higher_is_better=False),
    Axis("decode/ttft_ms/p95", "ms", higher_is_better=False),
    Axis("decode/itl_ms/p50", "ms", higher_is_better=False),
    Axis("decode/itl_ms/p95", "ms", higher_is_better=False),
)
PEAK_BANDWIDTH = {"H200": 4.8e12, "H100": 3.35e12, "A100": 2.039e12, "B200": 8.0e12}
"""Memory bandwidth in bytes/s by part of the device's name (NVIDIA datasheets, SXM parts)."""
LARGEST_CACHE_BYTES = 126 * 2**20
"""Largest second-level cache of these devices (B200); a roofline bounds what is twice as large."""
LEAST_WEIGHT_BITS = 4.25
"""The fewest bits in which any lever stores a weight: four, and a scale of eight for 32."""


class DecodeWorkload:
    """Greedy decoding at several concurrencies with a paged KV cache."""

    name = "decode"
    summary = "greedy decode of a Qwen3 / Llama model: tok/s per concurrency, TTFT, ITL, memory"
    opener = "experiments.workloads.decode.opening:open_implementation"
    oracles = ORACLES
    decodes_in_double = True
    checks = (
        "op",
        "determinism",
        "tokens",
        "memcheck",
        "graph",
        "async",
        "smoke",
        "rollback",
        "stack",
    )

    def resolve(self, requested: Mapping[str, str], device: DeviceFacts) -> Mapping[str, Scalar]:
        """All parameters with defaults filled in, and the model's digest.

        Raises:
            UnknownName: a parameter that this workload does not have.
            BadParameter: a value out of range, or a folder that holds no usable model.
        """
        model = str(requested.get("model", SHIPPED))
        config = model_config(model)
        values = dict(defaults(device, config))
        for name in requested:
            if name not in values and name not in ("model", "model_digest"):
                raise UnknownName("parameter of decode", name, [*values, "model"])
        _follow(values, requested)
        for name, text in requested.items():
            if name in RANGES:
                values[name] = _integer(name, text)
            elif name in CHOICES:
                values[name] = _choice(name, text)
            elif name == "concurrency":
                values[name] = ",".join(str(c) for c in parsed_concurrency(text))
        _check_together(values, config, device)
        _check_quality(values, model)
        return values | {"model": model, "model_digest": model_digest(model)}

    def token_parameters(
        self, parameters: Mapping[str, Scalar], model: str, device: DeviceFacts
    ) -> Mapping[str, Scalar]:
        """The parameters of a comparison with those of another model, its digest among them.

        Raises:
            BadParameter: there is no such model, its weights are random, or it cannot decode the
                prompts.
        """
        return self.resolve(token_settings(parameters, model, device), device)

    def weights_digest(self, parameters: Mapping[str, Scalar]) -> str:
        """The digest of the model as it lies there now.

        Raises:
            BadParameter: the folder is no longer there, or holds no usable model.
        """
        model = str(parameters["model"])
        model_config(model)
        return model_digest(model)

    def axes(self, parameters: Mapping[str, Scalar]) -> tuple[Axis, ...]:
        """Throughput per concurrency, latencies, peak memory; loss and weights where judged."""
        counts = parsed_concurrency(str(parameters["concurrency"]))
        rates = tuple(Axis(rate_axis(c), "tok/s", higher_is_better=True) for c in counts)
        on_cuda = parameters["device_type"] == "cuda"
        memory = Axis("memory/peak_bytes", "bytes", higher_is_better=False, deterministic=on_cuda)
        loss = Axis(QUALITY, "nat", higher_is_better=False, deterministic=True)
        stored = Axis(WEIGHT_BYTES, "bytes", higher_is_better=False, deterministic=True)
        losses = (loss,) if parameters["quality"] == "on" else ()
        return (*rates, *FIXED_AXES, memory, *losses, *((stored,) if weighs(parameters) else ()))

    def targets(self, parameters: Mapping[str, Scalar], oracle: str | None) -> tuple[Target, ...]:
        """Each throughput must reach the oracle's; without an oracle there is no target.

        Where an oracle is measured at some concurrencies alone, the others stay undecided.

        Raises:
            UnknownName: there is no such oracle.
            BadParameter: an argument of the oracle that cannot be used with these parameters.
        """
        if oracle is None:
            return ()
        counts = parsed_concurrency(str(parameters["concurrency"]))
        parsed_oracle(oracle).concurrency(counts)
        return tuple(Target(rate_axis(c), "oracle", 1.0) for c in counts)

    def sites(self, parameters: Mapping[str, Scalar]) -> tuple[str, ...]:
        """Each operation of the decoder, the forms of its weights, and how a step is run."""
        del parameters
        return SITES

    def needs(self, parameters: Mapping[str, Scalar], device: DeviceFacts) -> Needs:
        """Weights, cache and work space (measured factors), and the time of one sample."""
        config = model_config(str(parameters["model"]))
        counts = parsed_concurrency(str(parameters["concurrency"]))
        tokens = int(parameters["prompt_tokens"] or 0) + int(parameters["output_tokens"] or 0)
        longer = int(parameters["ttft_tokens"] or 0) if have_own_cache(parameters) else 0
        width = 2 if device.device_type == "cuda" else 4
        weights = config.parameters * width
        cache = config.kv_bytes_per_token * (width // 2) * (tokens * max(counts) + longer)
        total = weights + weights // 4 + cache + 2**29
        on_cuda = device.device_type == "cuda"
        return Needs(
            device_memory_bytes=total if on_cuda else 0,
            host_memory_bytes=2**31 if on_cuda else total,
            disk_bytes=64 * 2**20,
            seconds_per_sample=seconds_per_sample(parameters, config, device.device_type),
            time_limit_s=TIME_LIMIT_S if on_cuda else 0.0,
        )

    def oracle_seconds(
        self, parameters: Mapping[str, Scalar], device: DeviceFacts, oracle: str
    ) -> tuple[float, float]:
        """Seconds of an oracle's first process, which may have to compile, and of each later."""
        config = model_config(str(parameters["model"]))
        return oracle_seconds(parameters, config, device.device_type, parsed_oracle(oracle))

    def oracle_mode(self, parameters: Mapping[str, Scalar], oracle: str) -> str:
        """The mode of the oracle's users; see :mod:`~experiments.workloads.decode.oracle_names`."""
        return users_mode(parameters, oracle)

    def impossible(
        self, parameters: Mapping[str, Scalar], device: DeviceFacts
    ) -> Mapping[str, float]:
        """The rate at which weights and cache can be read from memory, per concurrency.

        A step reads every weight once, in the fewest bits in which a lever stores one, and every
        cached token of its sequences. Empty on a device whose bandwidth is not known, and where the
        weights fit into twice the last cache.
        """
        known = [rate for part, rate in PEAK_BANDWIDTH.items() if part in device.kind]
        config = model_config(str(parameters["model"]))
        weights = config.weight_bytes_read * LEAST_WEIGHT_BITS / 16
        if not known or weights < 2 * LARGEST_CACHE_BYTES:
            return {}
        prompt = int(parameters["prompt_tokens"] or 0)
        bounds = {}
        for c in parsed_concurrency(str(parameters["concurrency"])):
            cached = c * max(0, prompt - 5 * c) * config.kv_bytes_per_token
            bounds[rate_axis(c)] = c * known[0] / (weights + cached)
        return bounds


def _integer(name: str, text: str) -> int:
    low, high = RANGES[name]
    try:
        value = int(str(text))
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise BadParameter(f"decode: {name} = {text!r}", cure=f"use an integer in {low}..{high}")
    return value


def _choice(name: str, text: str) -> str:
    if text not in CHOICES[name]:
        raise BadParameter(
            f"decode: {name} = {text!r}", cure=f"use one of {', '.join(CHOICES[name])}"
        )
    return str(text)


def _follow(values: dict[str, Scalar], requested: Mapping[str, str]) -> None:
    """Shorten the defaults that cannot be longer than a requested length."""
    for name, limit, less in (
        ("ttft_tokens", "prompt_tokens", 0),
        ("round_steps", "output_tokens", 1),
    ):
        if limit in requested and name not in requested:
            most = _integer(limit, requested[limit]) - less
            values[name] = min(int(values[name] or 0), most)


def _check_together(values: Mapping[str, Scalar], config: ModelConfig, device: DeviceFacts) -> None:
    """Refuse combinations that cannot run or would not be what they say."""
    _check_backend(values, device)
    _check_pages(values)
    _check_lengths({name: int(values[name] or 0) for name in RANGES}, config)


def _check_backend(values: Mapping[str, Scalar], device: DeviceFacts) -> None:
    graph, attn = values["graph"], values["attn"]
    if graph == "on" and device.device_type != "cuda":
        raise BadParameter("decode: graph = on needs CUDA", cure="leave graph out on the CPU")
    if graph == "on" and attn == "torch":
        raise BadParameter(
            "decode: attn = torch reads lengths on the host and cannot be captured",
            cure="use attn=triton, or graph=off",
        )
    if attn == "triton" and device.device_type != "cuda":
        raise BadParameter("decode: attn = triton needs CUDA", cure="use attn=torch on the CPU")


def _check_quality(values: Mapping[str, Scalar], model: str) -> None:
    if values["quality"] == "on" and is_random(model):
        raise BadParameter(
            f"decode: quality = on says nothing of {model}: nothing was learnt by random weights",
            cure=f"use model={SHIPPED} or a folder of trained weights",
        )


def _check_pages(values: Mapping[str, Scalar]) -> None:
    """The plain form takes whole pages; the kernel also pieces of a larger one."""
    page, block = int(values["page_size"] or 0), int(values["kv_block"] or 0)
    whole = values["attn"] == "torch"
    if page & (page - 1) or (block % page and (whole or page % block)):
        raise BadParameter(
            f"decode: page_size {page} must be a power of two that divides kv_block {block}",
            cure="use page_size=16, 32, 64 or 128",
        )


def _check_lengths(values: Mapping[str, int], config: ModelConfig) -> None:
    if values["round_steps"] >= values["output_tokens"]:
        raise BadParameter(
            f"decode: {values['round_steps']} round_steps give more than output_tokens",
            cure=f"name at most {values['output_tokens'] - 1}",
        )
    gaps = values["rounds"] * values["round_steps"]
    if gaps < SAMPLES_FOR_P95:
        raise BadParameter(
            f"decode: {gaps} steps a concurrency are too few for a p95",
            cure=f"let rounds x round_steps be at least {SAMPLES_FOR_P95}",
        )
    total = max(values["prompt_tokens"] + values["output_tokens"], values["ttft_tokens"])
    if total > config.max_positions:
        raise BadParameter(
            f"decode: {total} tokens exceed the model's {config.max_positions} positions",
            cure="shorten prompt_tokens, output_tokens or ttft_tokens",
        )


DECODE = DecodeWorkload()
