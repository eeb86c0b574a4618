"""The oracles of decode by name, and the mode in which the users of each run it (torch-free).

``sdpa``                    PyTorch's own attention in the same decoder
``transformers``            transformers with a static cache, on the same weights
``transformers:1,8,32``     the same at these concurrencies alone, where time is short
``server:http://HOST:PORT`` an OpenAI-compatible server that runs already
``server:COMMAND``          one that the command starts; ``{port}`` in it becomes a free port
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from experiments.values import Scalar
from experiments.workloads.decode.parameters import parsed_concurrency
from levers.errors import BadParameter, UnknownName

ORACLES = ("sdpa", "transformers", "transformers:", "server:")
"""The first is the default; a name that ends with a colon takes an argument."""

SHOWN = ("sdpa", "transformers", "transformers:C,C", "server:URL", "server:COMMAND")
"""The same as a reader of a message should see them."""

SERVED = "served"
"""Mode of a server that answers as its users configured it and found no prompt in its cache."""

Kind = Literal["sdpa", "transformers", "server"]


@dataclass(frozen=True, slots=True)
class OracleName:
    """An oracle's kind, and what follows the colon."""

    kind: Kind
    argument: str = ""

    @property
    def is_url(self) -> bool:
        """Whether a server is named by its address and not by the command that starts it."""
        return self.argument.startswith("http://")

    def concurrency(self, counts: tuple[int, ...]) -> tuple[int, ...]:
        """Which of the workload's concurrencies it is measured at.

        Raises:
            BadParameter: one that the workload does not measure.
        """
        if self.kind != "transformers" or not self.argument:
            return counts
        asked = parsed_concurrency(self.argument)
        beyond = [count for count in asked if count not in counts]
        if beyond:
            raise BadParameter(
                f"oracle transformers:{self.argument}: concurrency {beyond[0]} is not measured",
                cure=f"name some of {','.join(map(str, counts))}",
            )
        return asked


def parsed_oracle(text: str) -> OracleName:
    """The oracle of a name.

    Raises:
        UnknownName: there is no such oracle.
        BadParameter: an argument that cannot be used.
    """
    kind, _, argument = text.partition(":")
    argument = argument.strip()
    if text == "sdpa":
        return OracleName("sdpa")
    if kind == "transformers":
        parsed_concurrency(argument or "1", "--oracle transformers: concurrencies")
        return OracleName("transformers", argument)
    if kind == "server" and argument:
        _check_server(argument)
        return OracleName("server", argument)
    raise UnknownName("oracle", text, SHOWN)


def _check_server(argument: str) -> None:
    if argument.startswith("https://"):
        raise BadParameter(
            f"oracle server:{argument}: encryption would be timed with the answers",
            cure="name a plain http:// address of the same machine or rack",
        )
    if not argument.startswith("http://") and "{port}" not in argument:
        raise BadParameter(
            f"oracle server:{argument}: neither an address nor a command with a {{port}}",
            cure="write server:http://HOST:PORT, or 'server:vllm serve MODEL --port {port}'",
        )


def users_mode(parameters: Mapping[str, Scalar], oracle: str) -> str:
    """How an oracle must run to be what its users run; another mode is refused.

    ``sdpa`` is captured on CUDA even where the arms are not (``graph=off``): else a lever that
    captures would be held against half an implementation. Users of transformers on CUDA compile the
    decode step of a static cache and replay it from a graph; on a CPU they run it eagerly. What a
    server's users configured is taken as it is, unless its command or its log says that it captures
    nothing, or prompts were found in its prefix cache, which the arms do not have.

    Raises:
        UnknownName: there is no such oracle.
        BadParameter: an argument that cannot be used with these parameters.
    """
    name = parsed_oracle(oracle)
    name.concurrency(parsed_concurrency(str(parameters["concurrency"])))
    if name.kind == "server":
        return SERVED
    captured = parameters["device_type"] == "cuda"
    if name.kind == "transformers":
        return transformers_mode(captured)
    return f"{'captured' if captured else 'eager'}-sdpa"


def transformers_mode(captured: bool, compiled: bool | None = None) -> str:
    """``captured-compiled-transformers``, ``eager-transformers``; a compiled step is captured."""
    compiled = captured if compiled is None else compiled
    parts = ["captured" if captured else "eager", *(["compiled"] if compiled else [])]
    return "-".join([*parts, "transformers"])
