"""The work of one oracle sample: the same prompts, lengths and counts as an arm's sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.tasks import Measurement
from experiments.values import Scalar
from experiments.workloads.decode import arrivals, measuring
from experiments.workloads.decode.config import ModelConfig
from experiments.workloads.decode.folder import model_config
from experiments.workloads.decode.oracle_names import OracleName
from experiments.workloads.decode.parameters import parsed_concurrency
from experiments.workloads.decode.prompts import PromptSet, digest, prompt_set

PEAK = "memory/peak_bytes"
OF_THE_LARGEST = ("decode/itl_ms/", PEAK)
"""Axes of a sample that belong to its largest concurrency."""


class OracleWork:
    """Prompts and lengths as :class:`~experiments.workloads.decode.session.DecodeSession` has them.

    Attributes:
        counts: the concurrencies to measure.
        largest: of the workload, whether or not it is among them.
        measured: one prompt for each slot of the largest concurrency of the workload.
        arriving: the prompts whose first token is timed.
        capacity_tokens: positions that a sequence may take.
    """

    def __init__(self, parameters: Mapping[str, Scalar], seed: int, name: OracleName) -> None:
        self.parameters, self.seed = parameters, seed
        self.model = str(parameters["model"])
        self.config: ModelConfig = model_config(self.model)
        every = parsed_concurrency(str(parameters["concurrency"]))
        self.counts = name.concurrency(every)
        self.largest = max(every)
        prompt_tokens = self._number("prompt_tokens")
        self.output_tokens = self._number("output_tokens")
        self.capacity_tokens = prompt_tokens + self.output_tokens
        self.rounds, self.round_steps = self._number("rounds"), self._number("round_steps")
        self.prompts: PromptSet = prompt_set(self.model, self.config, prompt_tokens)
        self.measured = self.prompts.measured(max(every), seed)
        self.arriving = arrivals.arriving(parameters, self.config, self.measured, seed)

    def _number(self, name: str) -> int:
        return int(self.parameters[name] or 0)

    def requests(self) -> list[list[tuple[int, ...]]]:
        """The prompts of each round's timed first tokens."""
        rounds = arrivals.in_rounds(self.parameters, self.arriving, self.rounds)
        return [[prompt for _, prompt in share] for share in rounds]

    def measurement(
        self,
        gaps_s: Mapping[int, Sequence[float]],
        ttft: Sequence[float],
        peak_bytes: int | None,
        facts: Mapping[str, Scalar],
        latencies: Mapping[str, float] | None = None,
    ) -> Measurement:
        """The sample of an oracle.

        The gaps between tokens and the peak of memory are those of the largest concurrency that the
        arms have; an oracle that is not measured there has no such axes.

        Args:
            gaps_s: per concurrency, the seconds of each step in which every stream got a token.
            ttft: times to first token, in ms.
            peak_bytes: peak memory; None where it is not known, which leaves the axis out.
            facts: how the oracle ran, with ``oracle_mode``.
            latencies: axes that are known better than from the steps.
        """
        raw = {f"gaps_ms/c{c}": tuple(round(g * 1e3, 5) for g in v) for c, v in gaps_s.items()}
        values = measuring.axis_values(gaps_s, ttft, peak_bytes or 0) | dict(latencies or {})
        absent = () if self.largest in gaps_s else OF_THE_LARGEST
        absent = absent if peak_bytes is not None else (*absent, PEAK)
        values = {name: value for name, value in values.items() if not name.startswith(absent)}
        return Measurement(
            values=values,
            raw=raw | {"ttft_ms": tuple(round(t, 5) for t in ttft)},
            inputs_digest=digest(arrivals.inputs(self.parameters, self.measured, self.arriving)),
            outputs_count=sum(c * len(v) for c, v in gaps_s.items()) + len(ttft),
            facts={"prompt_tokens_total": sum(len(p) for p in self.measured), **facts},
        )
