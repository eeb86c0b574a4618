"""Near-ties beyond a policy's share: how often each arm's streams leave those of fp64.

Arithmetic that rounds otherwise chooses otherwise wherever two tokens are nearly as likely, and in
bf16 many are equally so: logits between 16 and 32 are 0.125 apart. On an H200 up to two fifths of
368 streams parted from the reference's beside operations whose error against fp64 was the
original's, and how many do says nothing about which arm is nearer to the truth. As for an
operation, each arm is held against truth: the same stored weights decoded greedily in fp64, every
operation in its original form.

Streams under load are compared, each prompt once (alone it would meet the same near-ties), until
they leave truth's for the first time; what comes behind a near-tie is asked of the reference on the
candidate's own tokens (:func:`.streams.later`). Departures per token compared are the arm's rate;
the candidate fails where its rate is proven more than :data:`ROW_RATIO` times the reference's, the
bound that single rows have (exact conditional test of two Poisson rates, Przyborowski and Wilenski
1940: given their sum, the departures of one arm are binomial).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scipy.special import bdtrc

from experiments.parity.bounds import ROW_RATIO
from experiments.parity.bounds import ratio as over
from experiments.parity.streams import Choice, first_divergence
from experiments.tasks import Outputs, Stream
from experiments.values import Scalar

WANT = "truth"
"""What a session is asked for: greedy streams in fp64."""

ALPHA = 0.05
"""Chance that a candidate at the very bound fails."""

LEAST = 30
"""Departures of the reference's from which on the test can tell: with as many of 184 streams a rate
twice the reference's is found in 65 % of checks, with 74 (40 %) in 94 % (simulated). With fewer the
policy's share decides as ever, so on a CPU, where fp32 hardly leaves fp64 at all."""


@dataclass(frozen=True, slots=True)
class Departures:
    """How often one arm's streams leave truth's.

    Attributes:
        parted: streams that do.
        tokens: compared with truth's, up to where a stream parts or ends.
    """

    parted: int = 0
    tokens: int = 0

    @property
    def rate(self) -> float:
        """Departures a token."""
        return self.parted / self.tokens if self.tokens else 0.0


@dataclass(frozen=True, slots=True)
class FromTruth:
    """Both arms' departures from truth, and what the candidate chose after it had parted."""

    ref: Departures
    cand: Departures
    later: tuple[Choice, ...] = ()

    @property
    def tells(self) -> bool:
        """Whether there are enough departures for the test to find a worse candidate."""
        return self.ref.parted >= LEAST

    @property
    def ratio(self) -> float:
        """The candidate's rate over the reference's."""
        return over(self.cand.rate, self.ref.rate)

    @property
    def p_further(self) -> float:
        """Chance of so many departures of the candidate's, were its rate at the bound."""
        if not self.cand.parted:
            return 1.0
        at_bound = ROW_RATIO * self.cand.tokens
        share = at_bound / (at_bound + self.ref.tokens)
        return float(bdtrc(self.cand.parted - 1, self.cand.parted + self.ref.parted, share))

    @property
    def further(self) -> bool:
        """Whether the candidate is proven further from truth than the bound allows."""
        return self.p_further < ALPHA

    def describe(self) -> str:
        """``fp64's streams are left 120 times by the candidate, 118 by the reference (...)``."""
        if self.ref.parted:
            rate = f"{self.ratio:.3g} times the reference's rate"
        else:
            rate = "a rate of 0 for the reference"
        return (
            f"fp64's streams are left {self.cand.parted} times by the candidate, "
            f"{self.ref.parted} by the reference: {rate}, {ROW_RATIO:g} allowed, "
            f"p = {self.p_further:.2g}"
        )

    def figures(self) -> Mapping[str, Scalar]:
        """For the record."""
        return {
            "truth_left_by_reference": self.ref.parted,
            "truth_left_by_candidate": self.cand.parted,
            "truth_tokens_of_reference": self.ref.tokens,
            "truth_tokens_of_candidate": self.cand.tokens,
        }


def departures(arm: Outputs, truth: Outputs) -> Departures:
    """Where each stream of an arm leaves truth's, as far as both go."""
    streams = {one.prompt: one for one in truth.streams}
    found = [_departure(stream, streams[stream.prompt]) for stream in arm.streams]
    return Departures(sum(one.parted for one in found), sum(one.tokens for one in found))


def _departure(stream: Stream, truth: Stream) -> Departures:
    parted = first_divergence(WANT, truth, stream)
    if parted is None:
        return Departures(0, min(len(stream.tokens), len(truth.tokens)))
    return Departures(1, parted.position + 1)


def of_arms(ref: Outputs, cand: Outputs, truth: Outputs) -> FromTruth:
    """The departures of both arms, whose streams and truth's are of the same prompts."""
    return FromTruth(departures(ref, truth), departures(cand, truth))
