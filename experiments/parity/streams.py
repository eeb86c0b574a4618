"""Greedy answers of both arms side by side: where they part, and how they end.

Two answers that begin alike part at one token. What comes after an allowed near-tie answers another
text, so its length says nothing beside the reference's. Its end is held against the reference all
the same, on the candidate's *own* tokens: a stop must be a token that the reference would choose
there, or nearly, and an answer that was cut must have come to the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.tasks import Outputs, Stream
from experiments.values import digest_of


@dataclass(frozen=True, slots=True)
class Choice:
    """A token of the candidate's, and what the reference, forced through those before it, says.

    ``gap_nat`` is how much likelier the reference's own choice is, None until it was asked.
    """

    mode: str
    prompt: int
    position: int
    prefix: tuple[int, ...]
    token: int
    gap_nat: float | None = None

    @property
    def where(self) -> str:
        """``prompt 7 (loaded), token 31``."""
        return f"prompt {self.prompt} ({self.mode}), token {self.position}"

    def describe(self) -> str:
        """``prompt 7 (loaded), token 31, gap 0.20 nat``."""
        gap = "not asked" if self.gap_nat is None else f"{self.gap_nat:.3g} nat"
        return f"{self.where}, gap {gap}"

    @property
    def gap(self) -> float:
        """The gap, or infinity where it was not asked."""
        return float("inf") if self.gap_nat is None else self.gap_nat

    def is_near(self, most_nat: float) -> bool:
        """A gap below zero, or none at all, is not a near-tie but a contradiction."""
        return self.gap_nat is not None and 0.0 <= self.gap_nat <= most_nat


@dataclass(frozen=True, slots=True)
class Compared:
    """What the streams of one mode, or of all, showed.

    Attributes:
        total: streams of the reference.
        divergences: the first different token of each stream that has one.
        endings: the stop tokens of those that stop somewhere else after it.
        shorter: in words, answers that end elsewhere although nothing before differs, that are
            missing, or that were cut before the limit.
        reference_apart: streams that the reference answers otherwise the second time.
        digest: of the candidate's answers.
    """

    total: int
    divergences: tuple[Choice, ...]
    endings: tuple[Choice, ...]
    shorter: tuple[str, ...]
    reference_apart: int
    digest: str

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The tokens of which the reference is asked: divergences, then stops behind them."""
        return (*self.divergences, *self.endings)


def compare(mode: str, ref: Outputs, again: Outputs, cand: Outputs) -> Compared:
    """Stream by stream: first divergences, and answers that end elsewhere."""
    others = {stream.prompt: stream for stream in cand.streams}
    longest = max((len(stream.tokens) for stream in ref.streams), default=0)
    divergences: list[Choice] = []
    endings: list[Choice] = []
    shorter: list[str] = []
    for stream in ref.streams:
        other = others.pop(stream.prompt, None)
        parted = None if other is None else first_divergence(mode, stream, other)
        if other is None or parted is None:
            ended = _ended(stream, other)
        else:
            divergences.append(parted)
            endings += _stopped_after(parted, stream, other)
            ended = _cut(other, longest)
        if ended:
            shorter.append(f"prompt {stream.prompt} ({mode}) {ended}")
    shorter += [f"prompt {prompt} ({mode}) was not asked for" for prompt in others]
    return Compared(
        total=len(ref.streams),
        divergences=tuple(divergences),
        endings=tuple(endings),
        shorter=tuple(shorter),
        reference_apart=len(apart(ref, again)),
        digest=digest_of(str([(s.prompt, s.tokens, s.finish) for s in cand.streams])),
    )


def merge(parts: Sequence[Compared]) -> Compared:
    """All modes together."""
    return Compared(
        total=sum(part.total for part in parts),
        divergences=tuple(one for part in parts for one in part.divergences),
        endings=tuple(one for part in parts for one in part.endings),
        shorter=tuple(one for part in parts for one in part.shorter),
        reference_apart=sum(part.reference_apart for part in parts),
        digest=digest_of(" ".join(part.digest for part in parts)),
    )


def apart(ref: Outputs, again: Outputs) -> list[int]:
    """The prompts that the reference answers otherwise the second time."""
    first = {stream.prompt: stream for stream in ref.streams}
    return [one.prompt for one in again.streams if first.get(one.prompt) != one]


def first_divergence(mode: str, ref: Stream, cand: Stream) -> Choice | None:
    """The first token at which two answers differ, None where one only goes on after the other."""
    for position, (own, other) in enumerate(zip(ref.tokens, cand.tokens, strict=False)):
        if own != other:
            return Choice(mode, ref.prompt, position, ref.tokens[:position], other)
    return None


def later(mode: str, ref: Outputs, cand: Outputs) -> list[Choice]:
    """Of each answer that parted a token half way to its end, and its last one, on its own tokens.

    What goes on about another text is still the answer of the same weights: the reference, forced
    through it, must find each of these tokens a choice of its own or a near-tie.
    """
    others = {stream.prompt: stream for stream in cand.streams}
    found = []
    for stream in ref.streams:
        other = others.get(stream.prompt)
        parted = None if other is None else first_divergence(mode, stream, other)
        if other is None or parted is None:
            continue
        last = len(other.tokens) - 1
        found += [
            Choice(mode, stream.prompt, at, other.tokens[:at], other.tokens[at])
            for at in sorted({(parted.position + 1 + last) // 2, last})
            if at > parted.position
        ]
    return found


def _ended(ref: Stream, cand: Stream | None) -> str:
    """How an answer with the same tokens ends otherwise than the reference's; empty if it does not.

    A stop is a token of its own, so one that only the candidate chose is a divergence.
    """
    if cand is None:
        return "has no answer"
    if len(cand.tokens) != len(ref.tokens):
        return f"ends after {len(cand.tokens)} tokens, the reference after {len(ref.tokens)}"
    if cand.finish != ref.finish:
        return f"ends by {cand.finish}, the reference by {ref.finish}"
    return ""


def _stopped_after(parted: Choice, ref: Stream, cand: Stream) -> list[Choice]:
    """The stop token of an answer that had parted before it and ends elsewhere."""
    last = len(cand.tokens) - 1
    same = len(cand.tokens) == len(ref.tokens) and cand.finish == ref.finish
    if cand.finish != "stop" or same or last == parted.position:
        return []
    return [Choice(parted.mode, parted.prompt, last, cand.tokens[:last], cand.tokens[last])]


def _cut(cand: Stream, longest: int) -> str:
    """An answer that was cut before the limit, which is the same for all prompts."""
    if cand.finish == "length" and len(cand.tokens) < longest:
        return f"is cut after {len(cand.tokens)} tokens, where the limit is {longest} at least"
    return ""
