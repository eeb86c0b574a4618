"""The oracle server against a real server: by address, by command, and with each of its faults."""

from __future__ import annotations

import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import pytest
from support import openai_server

from experiments.home import HOME_VARIABLE
from experiments.oracle_facts import ORACLE_MODE_FACT
from experiments.tasks import Measurement
from experiments.values import TOKENS, Scalar
from experiments.workloads.base import DeviceFacts
from experiments.workloads.decode import oracle_command, oracle_http, oracle_server
from experiments.workloads.decode.opening import open_implementation
from experiments.workloads.decode.oracle_command import ServerCommand, free_port
from experiments.workloads.decode.oracle_http import ServerFailed
from experiments.workloads.decode.oracle_server import ServerOracle
from experiments.workloads.decode.oracle_stream import Completion, TooShort
from experiments.workloads.decode.workload import DECODE
from levers.errors import BadParameter

CPU = DeviceFacts("cpu", "some CPU", 2**34)
SHORT = {
    "prompt_tokens": "64",
    "output_tokens": "24",
    "rounds": "2",
    "round_steps": "10",
    "ttft_repeats": "20",
    "ttft_tokens": "32",
    "concurrency": "1,4",
}


def parameters(**changes: str) -> Mapping[str, Scalar]:
    return DECODE.resolve({**SHORT, **changes}, CPU)


@pytest.fixture
def serve() -> Iterator[Callable[..., openai_server.Server]]:
    """Starts servers in threads of this process."""
    running: list[openai_server.Server] = []

    def start(fault: str = "none", **more: float) -> openai_server.Server:
        found = openai_server.Server(0, fault, **more)
        running.append(found)
        threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True).start()
        return found

    yield start
    for one in running:
        one.shutdown()
        one.server_close()


def oracle_at(url: str) -> ServerOracle:
    found = open_implementation(parameters(), "cpu", 1, f"oracle:server:{url}")
    assert isinstance(found, ServerOracle)
    return found


def measured(server: openai_server.Server) -> Measurement:
    oracle = oracle_at(server.url)
    oracle.warm_up()
    return oracle.measure()


def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> str:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    script = Path(openai_server.__file__)
    words = [sys.executable, "-S", str(script), "--port", "{port}", *more]
    return f"server:{shlex.join(words).replace(shlex.quote('{port}'), '{port}')}"


def ended(command: ServerCommand) -> ServerCommand:
    """Wait for a command that ends by itself."""
    deadline = time.monotonic() + 30.0
    while not command.has_ended and time.monotonic() < deadline:
        time.sleep(0.01)
    command.stop()
    return command


def test_a_sample_has_the_work_of_the_arms_and_the_servers_clock(
    serve: Callable[..., openai_server.Server],
) -> None:
    sample = measured(serve(step_ms=8.0))
    engine = open_implementation(parameters(), "cpu", 1, "engine")
    engine.warm_up()
    arm = engine.measure()
    assert sample.inputs_digest == arm.inputs_digest
    assert sample.outputs_count == arm.outputs_count
    times = {n: len(v) for n, v in arm.raw.items() if not n.startswith(TOKENS)}
    assert {n: len(v) for n, v in sample.raw.items()} == times
    assert arm.values.keys() - sample.values.keys() == {"memory/peak_bytes"}
    assert 40.0 < sample.values["decode/tok_s/c1"] < 140.0
    assert 160.0 < sample.values["decode/tok_s/c4"] < 560.0
    assert 7.0 < sample.values["decode/itl_ms/p50"] < 24.0
    assert sample.values["decode/ttft_ms/p50"] >= 1.0


def test_it_says_how_it_ran_and_that_is_its_users_mode(
    serve: Callable[..., openai_server.Server],
) -> None:
    facts = measured(serve()).facts
    assert facts[ORACLE_MODE_FACT] == DECODE.oracle_mode(parameters(), "server:http://h:1")
    assert facts["oracle_version"] == "server of scripted"
    assert facts["oracle_prefix_hits"] == 0.0
    assert facts["oracle_graphs"] == "not said"
    assert facts["oracle_extras"] == "ignore_eos min_tokens"


def test_every_request_has_a_beginning_of_its_own_and_the_length_of_its_prompt(
    serve: Callable[..., openai_server.Server],
) -> None:
    server = serve(step_ms=1.0)
    measured(server)
    prompts = [tuple(asked["prompt"]) for asked in server.seen]
    assert len({prompt[:8] for prompt in prompts}) == len(prompts) > 40
    assert {len(prompt) for prompt in prompts} == {64, 59, 54, 49, 32}
    assert len({prompt[8:32] for prompt in prompts}) == 4
    assert all(asked["temperature"] == 0 and asked["ignore_eos"] for asked in server.seen)


@pytest.mark.parametrize("fault", ["hits", "metrics"])
def test_a_prefix_cache_that_hits_is_another_mode_and_is_named(
    fault: str, serve: Callable[..., openai_server.Server]
) -> None:
    facts = measured(serve(fault, step_ms=1.0)).facts
    mode = str(facts[ORACLE_MODE_FACT])
    assert mode != DECODE.oracle_mode(parameters(), "server:http://h:1")
    assert "prefix cache that hit 50% of the prompt tokens" in mode


def test_a_server_that_knows_openais_options_alone_is_asked_with_those(
    serve: Callable[..., openai_server.Server],
) -> None:
    server = serve("strict", step_ms=1.0)
    facts = measured(server).facts
    assert facts["oracle_extras"] == "none"
    assert "ignore_eos" not in server.seen[-1]


def test_a_stream_without_chunks_is_read_too(serve: Callable[..., openai_server.Server]) -> None:
    assert measured(serve("plain", step_ms=1.0)).outputs_count == 10 * 2 * 5 + 20


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("refuse", "refused with status 503.*too busy"),
        ("short", "of .* tokens: a shorter answer is no speed-up"),
        ("no-usage", "sends no usage"),
        ("miscount", "usage says 3 tokens and its stream has 2"),
        ("pairs", "and its stream has 1"),
        ("prompt", "counted 65 tokens in a prompt of 64"),
        ("error", "engine is dead"),
        ("no-json", "no JSON"),
        ("not-http", "does not speak HTTP"),
    ],
)
def test_what_a_server_does_wrong_is_named(
    fault: str, words: str, serve: Callable[..., openai_server.Server]
) -> None:
    with pytest.raises(ServerFailed, match=words):
        measured(serve(fault, step_ms=1.0))


def test_a_server_that_hangs_is_given_up(
    serve: Callable[..., openai_server.Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracle_http.post_together, "__defaults__", (0.3,))
    with pytest.raises(ServerFailed, match="sent nothing for 0 s, 1 answers are open"):
        measured(serve("hang"))


def test_an_address_at_which_nobody_listens_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(oracle_command.START_LIMIT_S, "cpu", 0.3)
    with pytest.raises(ServerFailed, match=r"did not answer within 0 s \(.*refused"):
        oracle_at(f"http://127.0.0.1:{free_port()}").warm_up()


def test_a_command_is_started_waited_for_and_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child"
    text = command(tmp_path, monkeypatch, "--start-s", "0.5", "--child", str(child))
    oracle = open_implementation(parameters(), "cpu", 1, f"oracle:{text}")
    oracle.warm_up()
    number = int(child.read_text())
    assert psutil.pid_exists(number)
    sample = oracle.measure()
    gone = not psutil.pid_exists(number) or (
        psutil.Process(number).status() == psutil.STATUS_ZOMBIE
    )
    assert gone
    log = Path(str(sample.facts["oracle_log"]))
    assert log.parent == (tmp_path / "home" / "logs").resolve()
    assert log.read_text() == "scripted server\n"


def test_a_server_that_dies_in_the_middle_leaves_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle = open_implementation(
        parameters(), "cpu", 1, f"oracle:{command(tmp_path, monkeypatch, '--fault', 'die')}"
    )

    def work() -> None:
        oracle.warm_up()
        oracle.measure()

    with pytest.raises(ServerFailed, match=r"(broke off|gave no answer|cannot be reached).*log "):
        work()
    assert [path.suffix for path in (tmp_path / "home" / "logs").iterdir()] == [".log"]


def test_a_command_that_fails_at_once_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = command(tmp_path, monkeypatch, "--start-s=-1")
    began = time.monotonic()
    with pytest.raises(ServerFailed, match=r"(?s)ended before it answered.*no such model"):
        open_implementation(parameters(), "cpu", 1, f"oracle:{text}").warm_up()
    assert time.monotonic() - began < 30.0
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    with pytest.raises(ServerFailed, match="cannot be started"):
        open_implementation(parameters(), "cpu", 1, "oracle:server:/no/such {port}").warm_up()


def test_a_server_that_is_too_slow_to_start_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child"
    text = command(tmp_path, monkeypatch, "--start-s", "60", "--child", str(child))
    monkeypatch.setitem(oracle_command.START_LIMIT_S, "cpu", 1.0)
    with pytest.raises(ServerFailed, match=r"did not answer within 1 s.*scripted server"):
        open_implementation(parameters(), "cpu", 1, f"oracle:{text}").warm_up()
    number = int(child.read_text())
    assert not psutil.pid_exists(number) or psutil.Process(number).status() == "zombie"


@pytest.mark.parametrize(
    ("device", "mode"), [("cuda:0", "served eager (--enforce-eager)"), ("cpu", "served")]
)
def test_a_command_that_captures_nothing_is_in_another_mode_where_graphs_are(
    device: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = command(tmp_path, monkeypatch, "--enforce-eager", "--step-ms", "1")
    oracle = ServerOracle(parameters(), device, 1, text)
    oracle.warm_up()
    facts = oracle.measure().facts
    assert facts[ORACLE_MODE_FACT] == mode
    assert facts["oracle_graphs"] == "none (--enforce-eager)"


def test_a_server_at_an_address_that_tells_it_captures_nothing_is_in_another_mode(
    serve: Callable[..., openai_server.Server],
) -> None:
    oracle = ServerOracle(parameters(), "cuda:0", 1, f"server:{serve('eager', step_ms=1.0).url}")
    oracle.warm_up()
    facts = oracle.measure().facts
    assert facts[ORACLE_MODE_FACT] == "served eager (disable_cuda_graph=True)"
    assert facts[ORACLE_MODE_FACT] != DECODE.oracle_mode(parameters(), "server:http://h:1")


def test_what_the_log_of_a_command_says_of_graphs_is_read(tmp_path: Path) -> None:
    script = [sys.executable, "-c", "print('config: enforce_eager=True')"]
    found = ended(ServerCommand(f"{shlex.join(script)} {{port}}", "", tmp_path / "log"))
    assert str(found.graphs()) == "none (enforce_eager=True)"
    assert str(found.address.port) in found.command


def test_the_model_folder_is_filled_into_the_command(tmp_path: Path) -> None:
    found = ended(ServerCommand("echo {model} {port}", "/a folder", tmp_path / "log"))
    assert found.tail() == f"/a folder {found.address.port}"


def test_streams_that_never_run_together_end_the_warm_up(
    serve: Callable[..., openai_server.Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracle_server, "TRIES", 1)
    with pytest.raises(ServerFailed, match="a stream ended before all"):
        measured(serve(step_ms=1.0, prefill_ms=40.0))


def test_longer_answers_are_asked_for_until_all_streams_run_together(
    serve: Callable[..., openai_server.Server],
) -> None:
    sample = measured(serve(step_ms=2.0, prefill_ms=30.0))
    assert int(sample.facts["oracle_longest_answer"] or 0) > 40
    assert 600.0 < sample.values["decode/tok_s/c4"] < 2400.0


def test_streams_that_missed_each_other_are_asked_for_again(
    serve: Callable[..., openai_server.Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle = oracle_at(serve(step_ms=1.0).url)
    oracle.warm_up()
    real, misses = oracle_server.steps_together, iter([True])

    def once(completions: Sequence[Completion], steps: int) -> list[float]:
        if next(misses, False):
            raise TooShort("a stream ended")
        return real(completions, steps)

    monkeypatch.setattr(oracle_server, "steps_together", once)
    sample = oracle.measure()
    assert int(sample.facts["oracle_repeats"] or 0) >= 1
    assert sample.outputs_count == 10 * 2 * 5 + 20


def test_its_tokens_are_not_compared(serve: Callable[..., openai_server.Server]) -> None:
    oracle = oracle_at(serve().url)
    with pytest.raises(BadParameter, match="no outputs 'tokens'"):
        oracle.outputs({"want": "tokens"})
    with pytest.raises(ValueError, match="connected to in warm_up"):
        oracle.exercise()
    oracle.warm_up()
    oracle.exercise()
