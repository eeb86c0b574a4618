"""The oracle ``server``: an OpenAI-compatible server, by its address or by a command.

What is timed is what a client sees. Time to first token: one request after another. Throughput and
gaps: all requests of a concurrency are sent at once, and time runs from the moment when the last of
them has its first token, so that, as in the arms, it is decoding alone that is timed, of all of
them together. Memory is the server's own matter and is not reported.

A server on the device that is measured must be named by its command: one that runs already is a
foreign process there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from experiments.metrics import percentile, ttft_ms
from experiments.tasks import Measurement, Outputs
from experiments.values import Scalar
from experiments.workloads.base import unpaced
from experiments.workloads.decode import measuring
from experiments.workloads.decode.folder import is_random, model_folder
from experiments.workloads.decode.loaded import confirm
from experiments.workloads.decode.oracle_client import CompletionsClient, hit_share
from experiments.workloads.decode.oracle_command import (
    START_LIMIT_S,
    ServerCommand,
    log_path,
    wait_healthy,
)
from experiments.workloads.decode.oracle_graphs import NONE, first_known
from experiments.workloads.decode.oracle_http import ServerFailed, parsed_address
from experiments.workloads.decode.oracle_names import SERVED, parsed_oracle
from experiments.workloads.decode.oracle_stream import (
    TooShort,
    gaps_together,
    steps_together,
    tokens_before_all,
)
from experiments.workloads.decode.oracle_work import OracleWork
from levers.base import Site
from levers.errors import BadParameter

REQUESTS_A_TURN = 3
"""Timed first tokens between two turns, as the arms have them."""
WARM_REQUESTS = 4
"""Untimed requests of the timed length, as the arms have them."""
HIT_SHARE = 0.01
"""Share of prompt tokens in the prefix cache from which on it counts as a hit: a drawn first token
that two prompts share by chance is one token of a prompt."""
SPARE_TOKENS = 8
SPARE_SHARE = 0.5
"""What is asked for beyond the tokens that came before all streams were being decoded: so many,
and so much of their number, since that number varies from time to time."""
TRIES = 4
"""Times that the answers of a concurrency are asked for, each time longer ones."""


class ServerOracle:
    """One server and the client that measures it."""

    def __init__(
        self, parameters: Mapping[str, Scalar], device: str, seed: int, oracle: str
    ) -> None:
        self.sites: Mapping[str, Site] = {}
        self.pace: Callable[[], None] = unpaced
        self._name = parsed_oracle(oracle)
        self._device_type = device.split(":")[0]
        self._work = OracleWork(parameters, seed, self._name)
        self._spare = dict.fromkeys(self._work.counts, SPARE_TOKENS)
        self._repeats = 0
        self._command: ServerCommand | None = None
        self._client: CompletionsClient | None = None

    @contextlib.contextmanager
    def _ended_on_failure(self) -> Iterator[None]:
        """Where the work fails, end the server, with the end of its log in the message."""
        with contextlib.ExitStack() as unless_it_works:
            unless_it_works.callback(self.close)
            try:
                yield
            except ServerFailed as error:
                raise self._with_log(error) from error
            unless_it_works.pop_all()

    def _with_log(self, error: ServerFailed) -> ServerFailed:
        if self._command is None:
            return error
        where = f"log {self._command.log}: {self._command.tail() or 'empty'}"
        return ServerFailed(f"{error.message} ({where})", cure=error.cure)

    def close(self) -> None:
        """End a server that was started here."""
        if self._command is not None:
            self._command.stop()
            self._command = None

    def warm_up(self) -> None:
        """Start the server, wait for it, and ask once for all that is timed later."""
        with self._ended_on_failure():
            client = self._connect()
            client.probe(self._work.measured[0])
            for count in self._work.counts:
                self._decode(client, count)
            for prompt in self._work.requests()[0][:WARM_REQUESTS]:
                client.complete([prompt], 1)

    def _connect(self) -> CompletionsClient:
        if self._name.is_url:
            address = parsed_address(self._name.argument)
        else:
            model = "" if is_random(self._work.model) else str(model_folder(self._work.model))
            self._command = ServerCommand(self._name.argument, model, log_path())
            address = self._command.address
        wait_healthy(address, START_LIMIT_S[self._device_type], self._has_ended)
        confirm(self._work.parameters)
        vocabulary = [token for prompt in self._work.measured for token in prompt]
        self._client = CompletionsClient(address, vocabulary)
        return self._client

    def _has_ended(self) -> bool:
        return self._command is not None and self._command.has_ended

    def _decode(self, client: CompletionsClient, count: int) -> tuple[list[float], list[float]]:
        """Seconds of each common step, and each stream's gaps in ms, at one concurrency.

        Where the streams did not all run together for long enough they are asked for again, longer;
        how often that happened while time was taken is among the sample's facts.

        Raises:
            TooShort: the last try was too short too.
        """
        for _ in range(TRIES - 1):
            try:
                return self._decode_once(client, count)
            except TooShort:
                self._spare[count] *= 2
                self._repeats += 1
        return self._decode_once(client, count)

    def _decode_once(
        self, client: CompletionsClient, count: int
    ) -> tuple[list[float], list[float]]:
        steps = self._work.round_steps
        tokens = 1 + steps + self._spare[count]
        completions = client.complete(self._work.measured[:count], tokens)
        early = tokens_before_all(completions)
        self._spare[count] = max(self._spare[count], SPARE_TOKENS + int(early * (1 + SPARE_SHARE)))
        return steps_together(completions, steps), gaps_together(completions, steps)

    def measure(self) -> Measurement:
        """The timed work in the arms' order; a server that was started here is ended afterwards.

        Raises:
            ServerFailed: an answer that is not what was asked for.
        """
        with self._ended_on_failure():
            found = self._measure(self._ready())
        self.close()
        return found

    def _ready(self) -> CompletionsClient:
        if self._client is None:
            raise ValueError("the server is connected to in warm_up")
        return self._client

    def _measure(self, client: CompletionsClient) -> Measurement:
        client.prompt_tokens = client.cached_tokens = self._repeats = 0
        before = client.counted_hits()
        ttft: list[float] = []
        steps: dict[int, list[float]] = {count: [] for count in self._work.counts}
        gaps: dict[int, list[float]] = {count: [] for count in self._work.counts}
        for share in self._work.requests():
            for start in range(0, len(share), REQUESTS_A_TURN):
                self.pace()
                ttft += self._first_tokens_ms(client, share[start : start + REQUESTS_A_TURN])
            for count in self._work.counts:
                self.pace()
                found, apart = self._decode(client, count)
                steps[count] += found
                gaps[count] += apart
        hits = hit_share(client, before, client.counted_hits())
        itl = gaps[max(gaps)]
        latencies = {f"decode/itl_ms/p{q}": percentile(itl, q) for q in (50, 95)}
        return self._work.measurement(steps, ttft, None, self._facts(client, hits), latencies)

    def _first_tokens_ms(
        self, client: CompletionsClient, prompts: list[tuple[int, ...]]
    ) -> list[float]:
        for prompt in prompts[: measuring.SETTLE]:
            client.complete([prompt], 1)
        completions = [client.complete([prompt], 1)[0] for prompt in prompts]
        return [ttft_ms(one.sent_s, one.times_s[0]) for one in completions]

    def _facts(self, client: CompletionsClient, hits: float) -> dict[str, Scalar]:
        """How it ran: whatever is not as its users run it stands in the mode."""
        graphs = client.graphs()
        if self._command is not None:
            graphs = first_known((self._command.graphs(), graphs))
        eager = graphs.state == NONE and self._device_type == "cuda"
        mode = f"{SERVED} eager ({graphs.said})" if eager else SERVED
        if hits >= HIT_SHARE:
            mode += f", with a prefix cache that hit {hits:.0%} of the prompt tokens"
        return {
            "oracle_mode": mode,
            "oracle_version": f"server of {client.model}",
            "oracle_graphs": str(graphs),
            "oracle_prefix_hits": round(hits, 4),
            "oracle_extras": client.extras,
            "oracle_repeats": self._repeats,
            "oracle_longest_answer": 1 + self._work.round_steps + max(self._spare.values()),
            "oracle_log": str(self._command.log) if self._command is not None else "",
        }

    def exercise(self) -> None:
        """One answer; there is no site that could observe it."""
        self._ready().complete(self._work.measured[:1], 2)

    def outputs(self, arguments: Mapping[str, Any]) -> Outputs:
        """A server's tokens are not compared.

        Raises:
            BadParameter: always.
        """
        raise BadParameter(
            f"the oracle server has no outputs {arguments.get('want')!r}",
            cure="compare the tokens of the arms; a server is measured for its speed alone",
        )


def open_server(
    parameters: Mapping[str, Scalar], device: str, seed: int, oracle: str
) -> ServerOracle:
    """Prepare the prompts; the server is started in the warm-up."""
    return ServerOracle(parameters, device, seed, oracle)
