"""The decode workload inside one measured process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from experiments.metrics import percentile
from experiments.stopwatch import Stopwatch
from experiments.tasks import Measurement, Outputs
from experiments.values import TOKENS, Scalar
from experiments.workloads.base import unpaced
from experiments.workloads.decode import arrivals, floor, generation, measuring
from experiments.workloads.decode.answers import Answers
from experiments.workloads.decode.building import build_engine, engine_for_prompts
from experiments.workloads.decode.folder import model_config
from experiments.workloads.decode.loaded import loaded_fact
from experiments.workloads.decode.names import QUALITY, WEIGHT_BYTES, floor_fact
from experiments.workloads.decode.parameters import parsed_concurrency, weighs
from experiments.workloads.decode.prompts import digest, prompt_set
from experiments.workloads.decode.quality import CPU_TOKENS, CUDA_TOKENS, held_out_nll
from experiments.workloads.decode.sites import UNWATCHED
from levers.base import Site

PREFILLS_A_TURN = 3
"""Timed prefills between two turns: the tail of so short a request needs fine turns."""
WARM_REQUESTS = 4
"""Untimed requests of the timed length: on CUDA the second of a new length still took 60 ms, the
fifth 11 (kernels are loaded and memory is found for the new shapes)."""
WARM_STEPS = 3
"""Untimed steps of each concurrency."""
EXERCISE_STEPS = 2
"""Steps of each concurrency in the witness pass, at least one of them eager."""
PROFILED_STEPS = 8
"""Steps of each concurrency in one profiled step of the work, beside those that settle it."""


class DecodeSession:
    """One built decoder with its prompts; see :class:`experiments.workloads.base.Session`."""

    def __init__(
        self, parameters: Mapping[str, Scalar], device: str, seed: int, implementation: str
    ) -> None:
        self._parameters, self._device = parameters, torch.device(device)
        self._oracle = implementation.removeprefix("oracle:") if ":" in implementation else ""
        model = str(parameters["model"])
        self._config = model_config(model)
        self._counts = parsed_concurrency(str(parameters["concurrency"]))
        prompt_tokens = int(parameters["prompt_tokens"] or 0)
        self._output_tokens = int(parameters["output_tokens"] or 0)
        self._prompts = prompt_set(model, self._config, prompt_tokens)
        self._measured = self._prompts.measured(max(self._counts), seed)
        self._arriving = arrivals.arriving(parameters, self._config, self._measured, seed)
        self.pace: Callable[[], None] = unpaced
        self._fixed: dict[str, float] = {}
        self._warmed: dict[str, Scalar] = {}
        self._engine = build_engine(
            parameters, self._config, self._device, seed, self._oracle, max(self._counts)
        )
        self._door = self._engine
        if arrivals.have_own_cache(parameters):
            self._door = engine_for_prompts(self._engine, len(self._arriving[0]))
        self.sites: Mapping[str, Site] = self._engine.sites.by_name

    def _number(self, name: str) -> int:
        return int(self._parameters[name] or 0)

    def _step(self, count: int, captured: bool | None = None) -> Callable[[], Tensor]:
        """The decode step of ``count`` slots, run as its site says or as it is asked for."""
        engine = self._engine
        engine.plan(count)
        if captured is None:
            return engine.sites.step(engine, count)
        return engine.captured(count) if captured else engine.eager(count)

    def renew(self) -> None:
        """Drop the captured graphs: each holds the kernels and split counts of its setting."""
        self._engine.forget_graphs()

    def warm_up(self) -> None:
        """Prefill every prompt and decode at each concurrency: compile, capture, touch memory.

        What does not change from one sample to the next is measured here: the loss of held-out
        text, and the rate of a copy.
        """
        watch = Stopwatch()
        self._untimed()
        watch.lap("warm_weights_s")
        self._starts = []
        for slot, prompt in enumerate(self._measured):
            self._starts.append((self._engine.prefill(slot, prompt), len(prompt)))
        watch.lap("warm_prompts_s")
        for count in self._counts:
            self._decode(count, WARM_STEPS)
        watch.lap("warm_steps_s")
        for slot, prompt in self._requests(1)[0][:WARM_REQUESTS]:
            self._door.prefill(slot, prompt)
        watch.lap("warm_requests_s")
        self._warmed = watch.laps
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def _untimed(self) -> None:
        if self._parameters["quality"] == "on":
            length = self._number("prompt_tokens")
            about = CPU_TOKENS if self._device.type == "cpu" else CUDA_TOKENS
            texts = self._prompts.apart(max(1, about // length), length)
            self._fixed[QUALITY] = held_out_nll(self._engine, texts)
        if weighs(self._parameters):
            self._fixed[WEIGHT_BYTES] = float(floor.stored_bytes(self._engine.weights))
        self._weight_bytes = floor.read_bytes(self._engine.weights)
        self._copy_rate = floor.copy_rate(self._device, self._weight_bytes)

    def _decode(self, count: int, steps: int) -> measuring.Decoded:
        return measuring.time_decode(self._engine, self._step(count), self._starts[:count], steps)

    def measure(self) -> Measurement:
        """Rounds of a share of the prefills (TTFT), then some steps at every concurrency.

        Each distinct prompt was prefilled once in :meth:`warm_up`; the decode of every concurrency
        c starts from the caches of the first c prompts, and is rewound for the next. The rounds
        spread each axis over the whole sample, so that a slow moment does not fall on one of them.
        """
        requests = self._requests(self._number("rounds"))
        ttft: list[float] = []
        gaps: dict[int, list[float]] = {count: [] for count in self._counts}
        given: dict[int, tuple[int, ...]] = {}
        for share in requests:
            for start in range(0, len(share), PREFILLS_A_TURN):
                self.pace()
                few = share[start : start + PREFILLS_A_TURN]
                ttft += measuring.time_prefills(self._door, few)
            for count in self._counts:
                self.pace()
                done = self._decode(count, self._number("round_steps"))
                gaps[count] += done.gaps_s
                given[count] = done.first
        peak = measuring.peak_bytes(self._device)
        raw = {f"gaps_ms/c{c}": tuple(round(g * 1e3, 5) for g in v) for c, v in gaps.items()}
        raw |= {f"{TOKENS}c{c}": tuple(map(float, tokens)) for c, tokens in given.items()}
        return Measurement(
            values=measuring.axis_values(gaps, ttft, peak) | self._fixed,
            raw=raw | {"ttft_ms": tuple(round(t, 5) for t in ttft)},
            inputs_digest=digest(arrivals.inputs(self._parameters, self._measured, self._arriving)),
            outputs_count=sum(count * len(v) for count, v in gaps.items()) + len(ttft),
            facts={**self._facts(), **self._floor_facts(gaps), **self.step_work()},
        )

    def _floor_facts(self, gaps_s: Mapping[int, list[float]]) -> dict[str, Scalar]:
        """The median step of each concurrency as a multiple of its bandwidth floor.

        The caches are read at the length that they have in the middle of a round.
        """
        facts: dict[str, Scalar] = {"copy_bytes_per_s": round(self._copy_rate)}
        for count, gaps in gaps_s.items():
            lengths = sum(length for _, length in self._starts[:count])
            tokens = lengths + count * self._number("round_steps") / 2
            read = self._weight_bytes + floor.kv_bytes(self._config, tokens, self._engine.dtype)
            ratio = percentile(gaps, 50) * self._copy_rate / read
            facts[floor_fact(count)] = round(ratio, 3)
        return facts

    def _facts(self) -> dict[str, Scalar]:
        """The size of the work; of an oracle also how it really ran."""
        facts: dict[str, Scalar] = {"prompt_tokens_total": sum(len(p) for p in self._measured)}
        facts |= self._warmed | loaded_fact(self._engine.decoder.digest)
        if self._oracle:
            mode = "captured" if self._engine.holds_graphs else "eager"
            facts["oracle_mode"] = f"{mode}-{self._oracle}"
        return facts

    def step_once(self) -> None:
        """A few steps of every concurrency, run as the timed ones are: what a profile looks at."""
        for count in self._counts:
            self._decode(count, self._profiled_steps)

    @property
    def _profiled_steps(self) -> int:
        return min(PROFILED_STEPS, self._number("round_steps"))

    def step_work(self) -> Mapping[str, Scalar]:
        """The least that :meth:`step_once` must read: in each step every weight and the caches."""
        steps = self._profiled_steps + measuring.SETTLE
        filled = sum(length for count in self._counts for _, length in self._starts[:count])
        tokens = filled + sum(self._counts) * steps / 2
        return {
            "weight_bytes": steps * len(self._counts) * self._weight_bytes,
            "kv_bytes": round(steps * floor.kv_bytes(self._config, tokens, self._engine.dtype)),
            "profiled": f"{steps} steps at each c of {', '.join(map(str, self._counts))}",
        }

    def _requests(self, rounds: int) -> list[list[tuple[int, tuple[int, ...]]]]:
        """The timed requests of each round, ``(slot, prompt)``."""
        return arrivals.in_rounds(self._parameters, self._arriving, rounds)

    def exercise(self) -> None:
        """Run a few steps of each concurrency while the sites watch.

        All but the last are eager, since a replayed graph calls no site; the last is run as a timed
        one is.
        """
        sites = self._engine.sites
        for slot, prompt in enumerate(self._measured):
            self._engine.prefill(slot, prompt)
        for count in self._counts:
            step = self._step(count)
            sites.watch = generation.rate_axis(count)
            try:
                for _ in range(EXERCISE_STEPS - 1):
                    self._engine.step(count)
                step()
            finally:
                sites.watch = UNWATCHED

    def outputs(self, arguments: Mapping[str, Any]) -> Outputs:
        """What the parity checks compare, see :meth:`.answers.Answers.outputs`.

        Raises:
            BadParameter: an unknown ``want``.
        """
        answers = Answers(
            self._engine, self._prompts, self._counts, self._output_tokens, self._step
        )
        return answers.outputs(arguments)


def open_session(
    parameters: Mapping[str, Scalar], device: str, seed: int, implementation: str
) -> DecodeSession:
    """Build the decoder, its caches and prompts; no timed work.

    Raises:
        BadParameter: weights that do not fit the configuration, prompts that the text cannot give,
            or an unknown implementation.
    """
    torch.set_num_threads(int(parameters["threads"] or 1))
    return DecodeSession(parameters, device, seed, implementation)
