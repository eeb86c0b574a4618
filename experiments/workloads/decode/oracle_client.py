"""Requests to an OpenAI-compatible server: greedy completions of fixed length, several at once.

Prompts are sent as token ids, so that no tokenizer of the server is between. The first tokens of
each prompt are replaced by drawn ones, so that no request finds another's prompt in a cache.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
from collections.abc import Sequence
from typing import Any

from experiments.workloads.decode.oracle_graphs import INFO_PATHS, Graphs, by_info, first_known
from experiments.workloads.decode.oracle_http import (
    Address,
    ServerFailed,
    get,
    post_together,
    read_answer,
)
from experiments.workloads.decode.oracle_stream import Completion, read_completion

PREFIX_TOKENS = 8
"""Drawn tokens at the beginning of each prompt; caches of prefixes go by blocks of 16 or more."""
PROBE_TOKENS = 2
COMPLETIONS = "/v1/completions"
HIT_METRICS = re.compile(
    r"^(?:vllm:(?:gpu_)?prefix_cache_hits(?:_total)?|sglang:cached_tokens(?:_total)?)"
    r"(?:\{[^}]*\})? ([0-9.eE+]+)$",
    re.MULTILINE,
)
"""Counters of prompt tokens that were found in a prefix cache (vLLM, SGLang), in ``/metrics``."""


class CompletionsClient:
    """Talks to one server.

    Args:
        address: where it listens.
        vocabulary: token ids that may stand at the beginning of a prompt.

    Attributes:
        model: the name under which it serves its first model.
        prompt_tokens: tokens of all prompts sent.
        cached_tokens: tokens of prompts that its answers say were in its cache.
    """

    def __init__(self, address: Address, vocabulary: Sequence[int]) -> None:
        self.address = address
        self._vocabulary = sorted(set(vocabulary))
        self._random = random.SystemRandom()
        self.model = self._first_model()
        self.prompt_tokens = self.cached_tokens = 0
        self._knows_length = True

    def _first_model(self) -> str:
        try:
            status, body = get(self.address, "/v1/models")
            found = json.loads(body)["data"][0]["id"] if status == 200 else None
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise ServerFailed(
                f"{self.address.url}/v1/models names no model: {error}",
                cure="name an OpenAI-compatible server",
            ) from error
        if found is None:
            raise ServerFailed(
                f"{self.address.url}/v1/models answers status {status}",
                cure="name an OpenAI-compatible server",
            )
        return str(found)

    @property
    def extras(self) -> str:
        """The options beside OpenAI's own that the server takes."""
        return "ignore_eos min_tokens" if self._knows_length else "none"

    def probe(self, prompt: Sequence[int]) -> None:
        """Find out whether the server takes options that fix an answer's length.

        Raises:
            ServerFailed: it refuses with them and without them.
        """
        body = self._body(self._own(prompt), PROBE_TOKENS)
        reply = read_answer(post_together(self.address, COMPLETIONS, [body])[0])
        self._knows_length = reply.status not in (400, 422)
        self.complete([prompt], PROBE_TOKENS)

    def complete(self, prompts: Sequence[Sequence[int]], tokens: int) -> tuple[Completion, ...]:
        """Answers of ``tokens`` tokens to all prompts, asked for at the same moment.

        Raises:
            ServerFailed: an answer that is not what was asked for.
        """
        own = [self._own(prompt) for prompt in prompts]
        bodies = [self._body(prompt, tokens) for prompt in own]
        answers = post_together(self.address, COMPLETIONS, bodies)
        found = tuple(
            read_completion(answer, len(prompt), tokens)
            for answer, prompt in zip(answers, own, strict=True)
        )
        self.prompt_tokens += sum(len(prompt) for prompt in own)
        self.cached_tokens += sum(one.cached_tokens for one in found)
        return found

    def _own(self, prompt: Sequence[int]) -> list[int]:
        """The prompt with a beginning that no other request has."""
        count = min(PREFIX_TOKENS, len(prompt))
        return [*self._random.choices(self._vocabulary, k=count), *prompt[count:]]

    def _body(self, prompt: Sequence[int], tokens: int) -> bytes:
        asked: dict[str, Any] = {
            "model": self.model,
            "prompt": list(prompt),
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._knows_length:
            asked |= {"ignore_eos": True, "min_tokens": tokens}
            asked["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        return json.dumps(asked).encode()

    def counted_hits(self) -> float | None:
        """The server's own count of cached prompt tokens since it started; None if it has none."""
        try:
            status, body = get(self.address, "/metrics")
        except OSError:
            return None
        found = HIT_METRICS.findall(body.decode(errors="replace")) if status == 200 else []
        return sum(map(float, found)) if found else None

    def graphs(self) -> Graphs:
        """What the server says of captured graphs where it tells its options."""
        found = []
        for path in INFO_PATHS:
            with contextlib.suppress(OSError):
                status, body = get(self.address, path)
                found += [by_info(body)] if status == 200 else []
        return first_known(found)


def hit_share(client: CompletionsClient, before: float | None, after: float | None) -> float:
    """Share of the prompts' tokens that came from a prefix cache, by the larger of two counts."""
    by_metric = after - before if before is not None and after is not None else 0.0
    return max(by_metric, float(client.cached_tokens)) / max(1, client.prompt_tokens)
