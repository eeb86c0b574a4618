"""What the parity checks ask of a decoder: greedy streams, logit gaps and digests of logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from experiments.tasks import Outputs
from experiments.workloads.decode import generation
from experiments.workloads.decode.building import engine_in_double
from experiments.workloads.decode.engine import DecodeEngine
from experiments.workloads.decode.generation import Step
from experiments.workloads.decode.prompts import PromptSet, digest
from levers.errors import BadParameter

DIGEST_STEPS = 4
"""Steps of each concurrency whose logits are named by digest."""
PARITY_PROMPTS = 16
"""Prompts of a token check, unless more are asked for."""


class StepOf(Protocol):
    """How a session runs the step of ``count`` slots."""

    def __call__(self, count: int, captured: bool | None = None) -> Step:
        """Captured or eager, None as the workload's parameter says."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The passes over the fixed prompts; every slot is filled anew in each.

    Attributes:
        engine: at work, with whatever levers stand at its sites.
        prompts: of the model.
        counts: concurrencies of the workload.
        output_tokens: the most that a stream has.
        step_of: the session's step.
    """

    engine: DecodeEngine
    prompts: PromptSet
    counts: Sequence[int]
    output_tokens: int
    step_of: StepOf

    def outputs(self, arguments: Mapping[str, Any]) -> Outputs:
        """Greedy streams (``tokens``; in fp64 ``truth``), logit gaps or digests of logits.

        Args:
            arguments: ``want`` (tokens, truth, gaps or digests); ``prompts`` (16), how many of the
                fixed ones; ``concurrency`` (1); ``max_tokens`` (``output_tokens``); ``graph`` (the
                workload's parameter);
                for gaps ``prefixes``, a list of ``[prompt, tokens, candidate]``.

        Raises:
            BadParameter: an unknown ``want``.
        """
        want = arguments.get("want", "tokens")
        if want == "gaps":
            return self._gaps(arguments)
        if want in ("tokens", "truth"):
            return self._tokens(arguments)
        if want == "digests":
            return self._digests(arguments)
        raise BadParameter(
            f"decode has no outputs {want!r}", cure="use tokens, truth, gaps or digests"
        )

    def _gaps(self, arguments: Mapping[str, Any]) -> Outputs:
        prefixes = [(int(p), list(t), int(c)) for p, t, c in arguments["prefixes"]]
        prompts = self.prompts.fixed(max((p for p, _, _ in prefixes), default=0) + 1)
        count = self._batch(arguments)
        step = self._step_of_empty_slots(count, arguments)
        gaps = generation.logit_gaps(self.engine, step, prompts, prefixes, count)
        return Outputs(gaps=gaps, inputs_digest=digest(prompts))

    def _tokens(self, arguments: Mapping[str, Any]) -> Outputs:
        prompts = self.prompts.fixed(int(arguments.get("prompts", PARITY_PROMPTS)))
        count = self._batch(arguments)
        limit = min(int(arguments.get("max_tokens", self.output_tokens)), self.output_tokens)
        if arguments.get("want") == "truth":
            engine = engine_in_double(self.engine, count)
            step = engine.eager(count)
        else:
            engine = self.engine
            step = self._step_of_empty_slots(count, arguments)
        streams = generation.greedy_streams(engine, step, prompts, count, limit)
        return Outputs(streams=streams, inputs_digest=digest(prompts))

    def _batch(self, arguments: Mapping[str, Any]) -> int:
        """Slots that decode the fixed prompts: those asked for, as far as there are so many."""
        prompts = int(arguments.get("prompts", PARITY_PROMPTS))
        return min(int(arguments.get("concurrency", 1)), self.engine.slots, prompts)

    def _step_of_empty_slots(self, count: int, arguments: Mapping[str, Any]) -> Step:
        """A step to fill its slots anew; a capture runs it, and none may stand at its end then."""
        self.engine.positions_B.zero_()
        return self.step_of(count, _captured(arguments))

    def _digests(self, arguments: Mapping[str, Any]) -> Outputs:
        """Digests at the concurrency that is asked for, at every one where none is."""
        asked = arguments.get("concurrency")
        counts = self.counts if asked is None else (min(int(asked), self.engine.slots),)
        prompts = self.prompts.fixed(max(counts))
        steps = min(int(arguments.get("steps", DIGEST_STEPS)), self.output_tokens - 1)
        digests: dict[str, str] = {}
        nonfinite: dict[str, int] = {}
        for count in counts:
            found, bad = generation.step_digests(
                self.engine,
                self.step_of(count, _captured(arguments)),
                prompts[:count],
                steps,
                f"logits/c{count}",
            )
            digests, nonfinite = digests | found, nonfinite | bad
        return Outputs(digests=digests, nonfinite=nonfinite, inputs_digest=digest(prompts))


def _captured(arguments: Mapping[str, Any]) -> bool | None:
    """Whether a graph is asked for; None leaves it to the workload's parameter."""
    graph = arguments.get("graph")
    return None if graph is None else graph in (True, "on", "captured")
