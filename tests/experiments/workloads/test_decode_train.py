"""The training script, at a size that takes seconds."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import torch

from experiments.workloads.decode import train as training
from experiments.workloads.decode import train_loop
from experiments.workloads.decode.config import read_config
from experiments.workloads.decode.corpus import (
    FILE_STOP,
    STOP,
    bible_corpus,
    documents_of,
    encode_documents,
    files_corpus,
    lines_corpus,
    read_text,
    train_tokenizer,
    verses_of,
)
from experiments.workloads.decode.folder import model_config
from experiments.workloads.decode.muon import orthogonalised
from experiments.workloads.decode.parameters import PROMPT_COUNT
from experiments.workloads.decode.train_loop import places, quality, schedule, train
from experiments.workloads.decode.train_recipes import RECIPES, Recipe
from experiments.workloads.decode.weights import load_weights
from levers.kernels.split_heuristic import DecodeShape, kv_block_tokens, upstream_splits

BIBLE = """
Genesis 1

  1 In the beginning God created the heaven and the earth.
  2 And the earth was without form, and void; and darkness was upon the face of
the deep.

Mark 1

  1 The beginning of the gospel of Jesus Christ, the Son of God;
"""
TINY = Recipe(
    dataclasses.replace(
        RECIPES["shipped"].config, vocab_size=260, hidden_size=16, intermediate_size=32
    ),
    steps=30,
    batch_tokens=128,
    short_tokens=16,
    long_tokens=32,
    long_share=0.2,
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small matrices: a second thread only waits."""
    found = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(found)


def test_verses_are_joined_over_lines_and_know_their_book() -> None:
    verses = verses_of(BIBLE)
    assert [book for book, _ in verses] == ["Genesis", "Genesis", "Mark"]
    assert verses[1][1].endswith("upon the face of the deep.")


def test_the_held_out_book_is_not_trained_on() -> None:
    corpus = bible_corpus(BIBLE, "Mark")
    assert len(corpus.documents) == 2
    assert corpus.held_out == ["The beginning of the gospel of Jesus Christ, the Son of God;"]


def test_the_last_tenth_of_plain_lines_is_held_out() -> None:
    corpus = lines_corpus("\n".join(f"line {i}" for i in range(40)), 80_000)
    assert len(corpus.held_out) == 4
    assert corpus.documents[0] == "line 0"
    assert not set(corpus.documents) & set(corpus.held_out)
    assert corpus.prompts_text.startswith("line 36\nline 37")


def test_documents_end_with_the_stop_token_and_every_text_survives() -> None:
    documents = documents_of("one  two\n\nthree é\n")
    assert documents == ["one two", "three é"]
    tokenizer = train_tokenizer(lines_corpus("one  two\n\nthree é\n", 1), 270, 10_000)
    ids = encode_documents(tokenizer, documents).tolist()
    assert tokenizer.token_to_id(STOP) == 0
    assert ids.count(0) == 2
    assert ids[-1] == 0
    assert tokenizer.decode(ids, skip_special_tokens=False) == "one two\nthree é\n"


def test_a_folder_of_texts_is_read_in_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "c.py").write_text("third")
    assert read_text(tmp_path) == "first\nsecond"
    assert read_text(tmp_path, "*.py") == "third"


def source_tree(folder: Path, files: int = 60) -> Path:
    """Python files in two packages; every name occurs in both with its own text."""
    for number in range(files):
        package = folder / f"package{number % 2}"
        package.mkdir(parents=True, exist_ok=True)
        body = "\n".join(f"    total = total + {i} * {number}" for i in range(number % 7 + 2))
        text = f"def function{number}(total):\n{body}\n    return total\n"
        (package / f"module{number // 2}.py").write_text(text)
    return folder


def test_files_are_documents_in_an_order_that_no_folder_decides(tmp_path: Path) -> None:
    here, there = source_tree(tmp_path / "here"), source_tree(tmp_path / "there")
    (here / "notes.txt").write_text("not asked for")
    (here / "package0" / "copy.py").write_text((here / "package0" / "module3.py").read_text())
    (here / "package0" / "empty.py").write_text("\n")
    (here / "package0" / "blob.py").write_text("x" * 500_000)
    first, second = (files_corpus(one, "*.py", 400, 10**9) for one in (here, there))
    assert sorted(first.documents + first.held_out) == sorted(second.documents + second.held_out)
    assert second.digest == files_corpus(there, "*.py", 400, 10**9).digest
    assert len(second.documents) + len(second.held_out) == 60
    assert 1 <= len(second.held_out) <= 6
    numbers = [int(text.split("(")[0].removeprefix("def function")) for text in second.documents]
    assert {number % 2 for number in numbers[:10]} == {0, 1}
    assert numbers != sorted(numbers)
    assert all("\n    total = total" in text for text in second.documents)


def test_no_more_text_is_read_than_asked_for(tmp_path: Path) -> None:
    corpus = files_corpus(source_tree(tmp_path), "*.py", 400, 1000)
    total = sum(map(len, corpus.documents)) + sum(map(len, corpus.held_out))
    assert 1000 <= total < 1400


def test_held_out_files_come_back_as_documents_of_their_own(tmp_path: Path) -> None:
    corpus = files_corpus(source_tree(tmp_path), "*.py", 400, 10**9)
    tokenizer = train_tokenizer(corpus, 300, 5_000)
    alone = encode_documents(tokenizer, corpus.held_out, corpus.stop).tolist()
    assert tokenizer.encode(corpus.prompts_text, add_special_tokens=False).ids == alone
    assert alone.count(tokenizer.token_to_id(FILE_STOP)) == len(corpus.held_out)


def test_the_tokenizer_is_made_from_the_beginning_of_the_text() -> None:
    corpus = lines_corpus("\n".join(f"line {i}" for i in range(40)), 10)
    assert list(corpus.head(13)) == ["line 0", "line 1", "line 2"]
    assert list(corpus.head(10**6)) == list(corpus.documents)


@pytest.mark.parametrize("optimiser", ["muon", "adamw"])
def test_a_short_training_lowers_the_loss_and_repeats_itself(
    optimiser: Literal["muon", "adamw"],
) -> None:
    ids = torch.tensor([1, 2, 3, 4, 5, 6, 7, 0] * 40, dtype=torch.int32)
    recipe = dataclasses.replace(TINY, optimiser=optimiser, learning_rate=1e-2)
    (weights, steps), (again, _) = (train(recipe, ids, 0, torch.device("cpu")) for _ in range(2))
    assert steps == TINY.steps
    assert quality(recipe, weights, ids)["held_out_loss_nat"] < 3.0
    assert torch.equal(weights.embed_VC, again.embed_VC)


def test_a_time_limit_goes_through_the_whole_schedule_with_fewer_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(train_loop.time, "monotonic", lambda: float(next(clock)))
    found = list(places(dataclasses.replace(TINY, steps=100), seconds=10.0))
    assert found == [10.0 * i for i in range(1, 10)]
    assert schedule(found[-1], 100) == pytest.approx(0.2)
    assert list(places(dataclasses.replace(TINY, steps=3), seconds=None)) == [0.0, 1.0, 2.0]


def test_the_schedule_warms_up_holds_and_falls() -> None:
    assert schedule(0, 1000) == pytest.approx(0.05)
    assert schedule(300, 1000) == 1.0
    assert schedule(900, 1000) == pytest.approx(0.2)


def test_the_large_recipe_has_about_a_hundred_million_parameters_and_splits_its_keys() -> None:
    recipe = RECIPES["100m"]
    config = recipe.config
    assert 90e6 < config.parameters < 110e6
    assert (config.head_dim, config.num_kv_heads) == (128, 8)
    assert recipe.prompt_tokens >= 2048
    assert recipe.held_out_characters > PROMPT_COUNT * recipe.prompt_tokens * 4
    shape = DecodeShape(1, config.num_kv_heads, 2048, kv_block_tokens(config.head_dim), 132)
    assert upstream_splits(shape) > 1


def test_the_written_folder_is_a_model_that_decodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text("\n".join(f"the number {i} comes before {i + 1}" for i in range(200)))
    monkeypatch.setitem(RECIPES, "shipped", TINY)
    training.main(["--text", str(text), "--out", str(out), "--steps", "3"])
    config = read_config(out)
    assert config == model_config(str(out))
    assert config.eos_token_ids == (0,)
    weights = load_weights(config, out, torch.device("cpu"), torch.float32)
    assert weights.embed_VC.shape == (260, 16)
    assert (out / "prompts.txt").read_text().startswith("the number 1")


def test_a_folder_of_files_becomes_a_model_within_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    recipe = dataclasses.replace(
        TINY, steps=10_000, optimiser="adamw", prompt_tokens=32, held_out_characters=3_000
    )
    monkeypatch.setitem(RECIPES, "100m", recipe)
    monkeypatch.setattr(training, "WRITING_S", 0.0)
    words = ["--text", str(source_tree(tmp_path / "tree", 80)), "--glob", "*.py"]
    words += ["--format", "files", "--size", "100m", "--seconds", "2", "--out", str(out)]
    training.main(words)
    trained = json.loads((out / "config.json").read_text())["training"]
    assert 3 <= trained["steps"] < 10_000
    assert trained["tokens"] == trained["steps"] * recipe.batch_tokens
    assert len(trained["text_sha256"]) == 64
    assert trained["held_out_tokens"] >= PROMPT_COUNT + 32
    assert FILE_STOP in (out / "prompts.txt").read_text()
    assert model_config(str(out)).num_kv_heads == 8


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--seconds", "0.001"], "are over"),
        (["--glob", "*.rst"], "too few to hold"),
    ],
)
def test_too_little_time_or_text_is_refused_before_training(
    more: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(RECIPES, "shipped", TINY)
    base = ["--text", str(source_tree(tmp_path)), "--glob", "*.py", "--format", "files"]
    with pytest.raises(SystemExit):
        training.main([*base, *more, "--out", str(tmp_path / "out")])
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_too_few_held_out_tokens_for_the_prompts_are_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(RECIPES, "shipped", dataclasses.replace(TINY, prompt_tokens=2048))
    base = ["--text", str(source_tree(tmp_path)), "--glob", "*.py", "--format", "files"]
    with pytest.raises(SystemExit):
        training.main([*base, "--out", str(tmp_path / "out")])
    assert "too few for 184 prompts of 2048" in capsys.readouterr().err


def test_an_orthogonalised_matrix_has_singular_values_near_one() -> None:
    draw = torch.randn(24, 10, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalised(draw))
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.3
