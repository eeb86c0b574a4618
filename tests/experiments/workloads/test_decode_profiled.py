"""What a profile of the decode workload looks at: timed steps, and the bytes that they read."""

from __future__ import annotations

import pytest

from experiments.workloads.base import DeviceFacts
from experiments.workloads.decode import session as sessions
from experiments.workloads.decode.measuring import SETTLE
from experiments.workloads.decode.session import PROFILED_STEPS, open_session
from experiments.workloads.decode.workload import DECODE

CPU = DeviceFacts("cpu", "test", 8 << 30)
SMALL = {
    "prompt_tokens": "32",
    "output_tokens": "24",
    "round_steps": "20",
    "rounds": "1",
    "ttft_repeats": "20",
    "ttft_tokens": "8",
    "concurrency": "1,2",
}


def test_a_profiled_step_decodes_every_concurrency_and_says_what_it_must_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parameters = DECODE.resolve(SMALL, CPU)
    session = open_session(parameters, "cpu", 1, "engine")
    session.warm_up()
    facts = session.measure().facts
    ran: list[int] = []
    found = session._engine.step
    monkeypatch.setattr(session._engine, "step", lambda n: (ran.append(n), found(n))[1])
    session.step_once()
    steps = PROFILED_STEPS + SETTLE
    assert ran == [1] * steps + [2] * steps
    weights = sessions.floor.read_bytes(session._engine.weights)
    assert facts["weight_bytes"] == 2 * steps * weights
    (_, first), (_, second) = session._starts
    tokens = 2 * first + second + 3 * steps / 2
    kv = sessions.floor.kv_bytes(session._config, tokens, session._engine.dtype)
    assert facts["kv_bytes"] == round(steps * kv)
    assert facts["profiled"] == f"{steps} steps at each c of 1, 2"
