"""What a streamed completion says: when each token came, how many, and from which cache."""

from __future__ import annotations

import itertools
import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.workloads.decode.oracle_http import Answer, ServerFailed, read_answer

SHOWN_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer, in tokens.

    Attributes:
        sent_s: when the request was sent.
        times_s: the arrival of each token.
        prompt_tokens: as the server counted them.
        cached_tokens: those of the prompt that it says it found in its prefix cache.
    """

    sent_s: float
    times_s: tuple[float, ...]
    prompt_tokens: int
    cached_tokens: int


def read_completion(answer: Answer, prompt_tokens: int, tokens: int) -> Completion:
    """The completion of an answer, which must be as long as it was asked to be.

    Args:
        answer: as it came.
        prompt_tokens: length of the prompt that was sent.
        tokens: length of the answer that was asked for.

    Raises:
        ServerFailed: an error, an answer that is cut off or shorter, or counts that disagree.
    """
    reply = read_answer(answer)
    if reply.status != 200:
        said = reply.body.decode(errors="replace")[:SHOWN_CHARACTERS]
        raise ServerFailed(f"the server refused with status {reply.status}: {said}")
    times, usage, complete = _read_events(reply.events)
    if not complete:
        raise ServerFailed(
            f"the server broke off after {len(times)} of {tokens} tokens",
            cure="see its log; it may have died under the load",
        )
    _check_counts(len(times), usage, prompt_tokens, tokens)
    details = usage.get("prompt_tokens_details") or {}
    return Completion(
        answer.sent_s, tuple(times), prompt_tokens, int(details.get("cached_tokens") or 0)
    )


def _read_events(events: Sequence[tuple[float, bytes]]) -> tuple[list[float], dict[str, Any], bool]:
    """The time of each token, the last usage, and whether the stream came to its end."""
    times: list[float] = []
    usage: dict[str, Any] = {}
    for at_s, data in events:
        if data == b"[DONE]":
            return times, usage, True
        try:
            event = json.loads(data)
        except ValueError as error:
            shown = data[:SHOWN_CHARACTERS]
            raise ServerFailed(f"an event of the stream is no JSON: {shown!r}") from error
        if event.get("error"):
            raise ServerFailed(f"the server failed in its answer: {event['error']}")
        usage = event.get("usage") or usage
        times += [at_s] * _tokens_of(event, len(times))
    return times, usage, False


def _tokens_of(event: dict[str, Any], so_far: int) -> int:
    """How many tokens an event brings: its own count, its token ids, or one for a text."""
    choices = event.get("choices") or []
    if not choices:
        return 0
    if event.get("usage"):
        return max(0, int(event["usage"]["completion_tokens"]) - so_far)
    ids = choices[0].get("token_ids")
    if ids is not None:
        return len(ids)
    return int(bool(choices[0].get("text")) or not choices[0].get("finish_reason"))


def _check_counts(counted: int, usage: dict[str, Any], prompt_tokens: int, tokens: int) -> None:
    if "completion_tokens" not in usage:
        raise ServerFailed(
            "the server sends no usage, so that its tokens cannot be counted",
            cure="use one that knows stream_options.include_usage",
        )
    said = int(usage["completion_tokens"])
    if said != counted:
        raise ServerFailed(
            f"the server's usage says {said} tokens and its stream has {counted}",
            cure="use one that sends an event for each token, or counts in each event",
        )
    if counted != tokens:
        raise ServerFailed(
            f"the server answered {counted} of {tokens} tokens: a shorter answer is no speed-up",
            cure="use one that knows ignore_eos or min_tokens",
        )
    if int(usage.get("prompt_tokens", prompt_tokens)) != prompt_tokens:
        raise ServerFailed(
            f"the server counted {usage['prompt_tokens']} tokens in a prompt of {prompt_tokens}",
            cure="serve the model that --model names; it may add a token of its own",
        )


class TooShort(ServerFailed):
    """The answers did not all run for long enough at the same time."""


def steps_together(completions: Sequence[Completion], steps: int) -> list[float]:
    """Seconds of each step in which every stream got its next token, all of them being decoded.

    The time begins when the last stream has its first token: before, prompts are still computed.
    Step ``k`` ends when every stream has its ``k``-th token since then; no stream may have ended.

    Raises:
        TooShort: a stream ended before the others had ``steps`` tokens.
    """
    begin_s = max(one.times_s[0] for one in completions)
    firsts = [bisect_right(one.times_s, begin_s) for one in completions]
    if any(len(one.times_s) - at < steps for one, at in zip(completions, firsts, strict=True)):
        raise TooShort("a stream ended before all had been decoded together for long enough")
    ends = [
        max(one.times_s[at + step] for one, at in zip(completions, firsts, strict=True))
        for step in range(steps)
    ]
    if any(one.times_s[-1] < ends[-1] for one in completions):
        raise TooShort("a stream ended while others were still measured")
    return [end - start for start, end in zip([begin_s, *ends], ends, strict=False)]


def gaps_together(completions: Sequence[Completion], steps: int) -> list[float]:
    """Milliseconds between the tokens of each stream, over the same stretch."""
    begin_s = max(one.times_s[0] for one in completions)
    gaps = []
    for one in completions:
        at = bisect_right(one.times_s, begin_s)
        times = one.times_s[at - 1 : at + steps]
        gaps += [(b - a) * 1e3 for a, b in itertools.pairwise(times)]
    return gaps


def tokens_before_all(completions: Sequence[Completion]) -> int:
    """The most tokens that a stream got before the last one had its first."""
    begin_s = max(one.times_s[0] for one in completions)
    return max(bisect_right(one.times_s, begin_s) for one in completions)
