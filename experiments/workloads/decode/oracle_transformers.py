"""The oracle ``transformers``: its model, its static cache, its attention, in its users' mode.

On CUDA the decode step is compiled once for each concurrency and replayed from a graph that holds
the step whole, which is no slower than ``generate`` with a static cache (that replays the forward
alone, and chooses the token outside). On a CPU it runs eagerly, as most users run it there.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from typing import Any, Literal

import torch

from experiments.compilations import CompilationCounter
from experiments.metrics import ttft_ms
from experiments.oracle_facts import ORACLE_PACKAGE_FACT
from experiments.stopwatch import Stopwatch
from experiments.tasks import Measurement, Outputs, Stream
from experiments.values import Scalar
from experiments.workloads.base import unpaced
from experiments.workloads.decode import measuring
from experiments.workloads.decode.loaded import confirm, loaded_fact
from experiments.workloads.decode.oracle_compiled import CompiledForward
from experiments.workloads.decode.oracle_model import open_model, transformers_module, weight_bytes
from experiments.workloads.decode.oracle_names import parsed_oracle, transformers_mode
from experiments.workloads.decode.oracle_static import StaticDecoder
from experiments.workloads.decode.oracle_work import OracleWork
from experiments.workloads.decode.prompts import digest
from levers.base import Site
from levers.errors import BadParameter, LevergateError

PREFILLS_A_TURN = 3
"""Timed prefills between two turns, as the arms have them."""
WARM_REQUESTS = 4
"""Untimed requests of the timed length, as the arms have them."""
WARM_STEPS = 3
PARITY_PROMPTS = 16
MOST_DIFFERENT = 0.25
"""Relative difference (L2) of a compiled step's logits from the eager one's in bf16, far above that
of other roundings and far below that of other weights or positions (1.4)."""


class TransformersOracle:
    """One transformers model with a static cache for each concurrency."""

    def __init__(
        self, parameters: Mapping[str, Scalar], device: str, seed: int, oracle: str
    ) -> None:
        self.sites: Mapping[str, Site] = {}
        self.pace: Callable[[], None] = unpaced
        self._watch = Stopwatch()
        self._work = OracleWork(parameters, seed, parsed_oracle(oracle))
        self._device = torch.device(device)
        dtype = torch.bfloat16 if self._device.type == "cuda" else torch.float32
        self._model = open_model(self._work.model, self._work.config, seed, self._device, dtype)
        self._loaded = confirm(parameters)
        self._watch.lap("warm_weights_s")
        room = self._work.capacity_tokens
        alone = max(room, len(self._work.arriving[0]))
        self._alone = StaticDecoder(self._model, 1, alone, self._model.forward)
        self._compiled: dict[int, CompiledForward] = {}
        self._batches = {count: self._batch(count, room) for count in self._work.counts}

    def _batch(self, count: int, room: int) -> StaticDecoder:
        forward = self._model.forward
        if self._device.type == "cuda":
            forward = self._compiled[count] = CompiledForward(
                self._model, f"{count} slots of {room} positions"
            )
        return StaticDecoder(self._model, count, room, forward)

    def warm_up(self) -> None:
        """Prefill every batch; on CUDA compile and capture its step."""
        watch = self._watch
        watch.lap("warm_other_s")
        for count, batch in self._batches.items():
            batch.prefill(self._work.measured[:count])
            watch.lap("warm_prompts_s")
            if count in self._compiled:
                batch.step()
                watch.lap("warm_compile_s")
                self._check(count, batch)
                batch.capture()
            self._decode(count, WARM_STEPS)
            watch.lap("warm_steps_s")
        for prompt in self._work.requests()[0][:WARM_REQUESTS]:
            self._first_token_ms(prompt)
        watch.lap("warm_requests_s")
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def _check(self, count: int, batch: StaticDecoder) -> None:
        """Hold a compiled step, which another process may have left, against the eager one.

        Raises:
            LevergateError: it computes something else.
        """
        differs = batch.difference()
        if not differs <= MOST_DIFFERENT:
            how = self._compiled[count].how
            raise LevergateError(
                f"the oracle's compiled step of {count} slots ({how}) differs by {differs:.2g} "
                "from its eager one",
                cure="empty the folder cache/oracles of the home",
            )

    def _decode(self, count: int, steps: int) -> list[float]:
        """Seconds of each step, from the end of the prompts on; every token is read by the host."""
        batch, gaps = self._batches[count], []
        batch.rewind()
        for _ in range(measuring.SETTLE):
            batch.step().tolist()
        last = time.perf_counter()
        for _ in range(steps):
            batch.step().tolist()
            now = time.perf_counter()
            gaps.append(now - last)
            last = now
        return gaps

    def _first_token_ms(self, prompt: tuple[int, ...]) -> float:
        self._alone.empty()
        arrival = time.perf_counter()
        self._alone.first_token(prompt)
        return ttft_ms(arrival, time.perf_counter())

    def measure(self) -> Measurement:
        """The timed work in the arms' order: a share of the first tokens, then each concurrency.

        Raises:
            LevergateError: something was compiled in the timed part.
        """
        counter = CompilationCounter()
        before = counter.count()
        ttft: list[float] = []
        gaps: dict[int, list[float]] = {count: [] for count in self._work.counts}
        for share in self._work.requests():
            for start in range(0, len(share), PREFILLS_A_TURN):
                self.pace()
                few = share[start : start + PREFILLS_A_TURN]
                for prompt in few[: measuring.SETTLE]:
                    self._first_token_ms(prompt)
                ttft += [self._first_token_ms(prompt) for prompt in few]
            for count in self._work.counts:
                self.pace()
                gaps[count] += self._decode(count, self._work.round_steps)
        compiled = counter.count() - before
        if compiled:
            raise LevergateError(
                f"the oracle transformers compiled {compiled} times in its timed part",
                cure="its warm-up must reach every shape; leave it out with --oracle sdpa",
            )
        peak = measuring.peak_bytes(self._device)
        return self._work.measurement(gaps, ttft, peak, self._facts())

    def _facts(self) -> dict[str, Scalar]:
        """How it really ran."""
        captured = all(batch.captured for batch in self._batches.values())
        ways = [one.how for one in self._compiled.values()]
        compiled = len(ways) == len(self._batches) and all(ways)
        return {
            "oracle_mode": transformers_mode(captured, compiled),
            "oracle_version": f"transformers {transformers_module().__version__}",
            ORACLE_PACKAGE_FACT: f"transformers {version('transformers')}",
            "oracle_cache": f"static, {self._work.capacity_tokens} positions",
            "oracle_attention": str(self._model.config._attn_implementation),
            "oracle_weight_bytes": weight_bytes(self._model),
            "oracle_compiler": compiler_text(ways),
            **loaded_fact(self._loaded),
            **self._watch.laps,
        }

    def exercise(self) -> None:
        """A few steps of each concurrency; there is no site that could observe them."""
        for count in self._work.counts:
            self._batches[count].prefill(self._work.measured[:count])
            self._decode(count, WARM_STEPS)

    def outputs(self, arguments: Mapping[str, Any]) -> Outputs:
        """Greedy streams (``tokens``) of the fixed prompts, one after another and eagerly.

        Raises:
            BadParameter: another ``want``.
        """
        if arguments.get("want", "tokens") != "tokens":
            raise BadParameter("the oracle transformers has no such outputs", cure="ask for tokens")
        prompts = self._work.prompts.fixed(int(arguments.get("prompts", PARITY_PROMPTS)))
        limit = min(int(arguments.get("max_tokens", 2**31)), self._work.output_tokens)
        streams = tuple(self._stream(i, prompt, limit) for i, prompt in enumerate(prompts))
        return Outputs(streams=streams, inputs_digest=digest(prompts))

    def _stream(self, index: int, prompt: tuple[int, ...], limit: int) -> Stream:
        stops = self._work.config.eos_token_ids
        self._alone.prefill([prompt])
        tokens = [int(self._alone.tokens_B1)]
        while tokens[-1] not in stops and len(tokens) < limit:
            tokens.append(int(self._alone.step()))
        finish: Literal["stop", "length"] = "stop" if tokens[-1] in stops else "length"
        return Stream(prompt=index, tokens=tuple(tokens), finish=finish)


def compiler_text(ways: Iterable[str]) -> str:
    """How the compiled forms came about: ``2 loaded``."""
    counts = Counter(ways)
    return ", ".join(f"{count} {how}" for how, count in counts.items()) or "not used"


def open_transformers(
    parameters: Mapping[str, Scalar], device: str, seed: int, oracle: str
) -> TransformersOracle:
    """Load the model; no timed work.

    Raises:
        BadParameter: transformers is not there, or too old.
    """
    torch.set_num_threads(int(parameters["threads"] or 1))
    return TransformersOracle(parameters, device, seed, oracle)
