"""Whether a server replays captured graphs, read from its command, its log and its options."""

from __future__ import annotations

import pytest

from experiments.workloads.decode.oracle_graphs import (
    Graphs,
    by_command,
    by_info,
    by_log,
    first_known,
)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("vllm serve m --enforce-eager", "none (--enforce-eager)"),
        ("vllm serve m --enforce_eager=True", "none (--enforce_eager=True)"),
        ("vllm serve m --enforce-eager=false", "not said"),
        ("vllm serve m -O0", "none (-O0)"),
        ("vllm serve m -O 0", "none (-O 0)"),
        ("vllm serve m -O 3", "not said"),
        (
            """vllm serve m --compilation-config '{"cudagraph_mode": "NONE"}'""",
            'none (cudagraph_mode": "NONE)',
        ),
        ("vllm serve m --compilation-config.cudagraph_mode=FULL", "not said"),
        ("python -m sglang.launch_server --disable-cuda-graph", "none (--disable-cuda-graph)"),
        ("vllm serve m --port 1", "not said"),
    ],
)
def test_the_options_that_switch_graphs_off_are_known(command: str, said: str) -> None:
    assert str(by_command(command)) == said


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("config: model='m', enforce_eager=True, seed=0", "none (enforce_eager=True)"),
        ("server_args=ServerArgs(disable_cuda_graph=True)", "none (disable_cuda_graph=True)"),
        (
            "config={'cudagraph_mode': <CUDAGraphMode.NONE: 0>}",
            "none (cudagraph_mode': <CUDAGraphMode.NONE)",
        ),
        (
            "Capturing cudagraphs for decoding. To run the model in eager mode, set "
            "'enforce_eager=True' or use '--enforce-eager' in the CLI.\n"
            "Graph capturing finished in 8 secs, took 0.2 GiB",
            "captured (Graph capturing finished)",
        ),
        ("enforce_eager=False, 'cudagraph_mode': <CUDAGraphMode.FULL: 2>", "not said"),
        ("Capture cuda graph end. Time elapsed: 5 s", "captured (Capture cuda graph end)"),
        ("", "not said"),
    ],
)
def test_a_log_says_what_was_captured_and_its_advice_is_no_mode(log: str, said: str) -> None:
    assert str(by_log(log)) == said


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"disable_cuda_graph": true}', "none (disable_cuda_graph=True)"),
        (b'{"server_args": {"disable_cuda_graph": false}}', "captured (disable_cuda_graph=False)"),
        (b'{"version": "1"}', "not said"),
        (b"[1]", "not said"),
        (b"<html>", "not said"),
        (b"", "not said"),
    ],
)
def test_a_server_that_tells_its_options_is_believed(body: bytes, said: str) -> None:
    assert str(by_info(body)) == said


def test_that_graphs_are_off_counts_before_that_some_were_captured() -> None:
    captured, off = Graphs("captured", "log"), Graphs("none", "option")
    assert first_known((captured, Graphs(), off)) == off
    assert first_known((Graphs(), captured)) == captured
    assert first_known(()) == Graphs()
