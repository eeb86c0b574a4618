"""Opens the session of a measured process: the decoder with its levers, or an outside oracle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from experiments.values import Scalar
from experiments.workloads.decode.oracle_names import parsed_oracle
from experiments.workloads.decode.session import open_session

if TYPE_CHECKING:
    from experiments.workloads.base import Session


def open_implementation(
    parameters: Mapping[str, Scalar], device: str, seed: int, implementation: str
) -> Session:
    """The session of ``engine`` or of ``oracle:<name>``; what an oracle needs is imported here.

    Raises:
        UnknownName: there is no such oracle.
        BadParameter: a model, parameter or oracle that cannot be used.
    """
    oracle = implementation.partition(":")[2]
    kind = parsed_oracle(oracle).kind if oracle else "engine"
    if kind == "transformers":
        from experiments.workloads.decode.oracle_transformers import open_transformers

        return open_transformers(parameters, device, seed, oracle)
    if kind == "server":
        from experiments.workloads.decode.oracle_server import open_server

        return open_server(parameters, device, seed, oracle)
    if kind == "sdpa" and device != "cpu":
        parameters = {**parameters, "graph": "on"}  # as its users run it, whatever the arms do
    return open_session(parameters, device, seed, implementation)
