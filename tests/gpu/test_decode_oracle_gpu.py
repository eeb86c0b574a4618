"""The oracles of decode on a CUDA device, and the large recipe of the training script."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from experiments.compilations import CompilationCounter
from experiments.oracle_facts import ORACLE_MODE_FACT
from experiments.workloads.decode import oracle_compiled
from experiments.workloads.decode import train as training
from experiments.workloads.decode.config import NAMED
from experiments.workloads.decode.opening import open_implementation
from experiments.workloads.decode.oracle_model import open_model, weight_bytes
from experiments.workloads.decode.oracle_transformers import TransformersOracle
from experiments.workloads.decode.train_recipes import RECIPES
from experiments.workloads.decode.workload import DECODE
from tests.gpu.test_decode_gpu import SHORT, facts

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def oracle() -> TransformersOracle:
    pytest.importorskip("transformers")
    found = open_implementation(DECODE.resolve(SHORT, facts()), "cuda:0", 1, "oracle:transformers")
    assert isinstance(found, TransformersOracle)
    found.warm_up()
    return found


def test_transformers_runs_compiled_and_captured_as_its_users_run_it(
    oracle: TransformersOracle,
) -> None:
    counter = CompilationCounter()
    before = counter.count()
    sample = oracle.measure()
    assert counter.count() == before
    expected = DECODE.oracle_mode(DECODE.resolve(SHORT, facts()), "transformers")
    assert sample.facts[ORACLE_MODE_FACT] == expected == "captured-compiled-transformers"
    assert all(value > 0 for value in sample.values.values())


def test_a_captured_step_decodes_what_the_eager_one_does(oracle: TransformersOracle) -> None:
    for count, batch in oracle._batches.items():
        batch.prefill(oracle._work.measured[:count])
        captured = torch.stack([batch.step().clone() for _ in range(8)])
        graph, batch._graph = batch._graph, None
        batch._forward, compiled = oracle._model.forward, batch._forward
        batch.rewind()
        eager = torch.stack([batch.step().clone() for _ in range(8)])
        batch._graph, batch._forward = graph, compiled
        assert (captured == eager).float().mean().item() >= 0.6


def test_a_compiled_step_is_kept_for_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second oracle's warm-up also holds what it loaded against the eager steps."""
    pytest.importorskip("transformers")
    monkeypatch.setenv(oracle_compiled.VARIABLE, str(tmp_path))
    ways = []
    for _ in range(2):
        parameters = DECODE.resolve({**SHORT, "concurrency": "2"}, facts())
        found = open_implementation(parameters, "cuda:0", 1, "oracle:transformers")
        found.warm_up()
        ways.append(found.measure().facts["oracle_compiler"])
    assert ways == ["1 compiled and kept", "1 loaded"]


def test_its_first_tokens_are_those_of_the_engine(oracle: TransformersOracle) -> None:
    arguments = {"want": "tokens", "prompts": 8, "max_tokens": 4}
    engine = open_implementation(DECODE.resolve(SHORT, facts()), "cuda:0", 1, "engine")
    mine, theirs = engine.outputs(arguments).streams, oracle.outputs(arguments).streams
    same = sum(one.tokens[0] == two.tokens[0] for one, two in zip(mine, theirs, strict=True))
    assert same >= 6


@pytest.mark.parametrize("name", ["random-0.6b"])
def test_the_weights_are_held_once_while_they_are_loaded(name: str) -> None:
    pytest.importorskip("transformers")
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    model = open_model(name, NAMED[name], 0, torch.device("cuda:0"), torch.bfloat16)
    peak = torch.cuda.max_memory_allocated() - held
    largest = NAMED[name].vocab_size * NAMED[name].hidden_size * 2
    assert peak <= 1.05 * (weight_bytes(model) + largest)


def test_a_short_training_of_the_large_recipe_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own dimensions and batch, on text that is there everywhere."""
    recipe = dataclasses.replace(
        RECIPES["100m"], steps=60, prompt_tokens=256, held_out_characters=60_000
    )
    monkeypatch.setitem(RECIPES, "100m", recipe)
    text, out = Path(__file__).parents[2] / "experiments", tmp_path / "out"
    words = ["--text", str(text), "--glob", "*.py", "--format", "files", "--size", "100m"]
    training.main([*words, "--device", "cuda:0", "--threads", "8", "--out", str(out)])
    trained = json.loads((out / "config.json").read_text())["training"]
    assert trained["steps"] == 60
    assert trained["held_out_loss_nat"] < 8.0
