"""The training script, at a size that takes seconds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from experiments.workloads.decode import train as training
from experiments.workloads.decode.config import read_config
from experiments.workloads.decode.corpus import (
    STOP,
    documents_of,
    encode_documents,
    read_text,
    train_tokenizer,
    verses_of,
)
from experiments.workloads.decode.folder import model_config
from experiments.workloads.decode.muon import orthogonalised
from experiments.workloads.decode.train import RECIPES, Recipe, split_text, train
from experiments.workloads.decode.weights import load_weights

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
    documents, held_out = split_text(BIBLE, "bible")
    assert len(documents) == 2
    assert held_out == ["The beginning of the gospel of Jesus Christ, the Son of God;"]


def test_the_last_tenth_of_plain_lines_is_held_out() -> None:
    documents, held_out = split_text("\n".join(f"line {i}" for i in range(40)), "lines")
    assert len(held_out) == 4
    assert documents[0] == "line 0"
    assert not set(documents) & set(held_out)


def test_documents_end_with_the_stop_token_and_every_text_survives() -> None:
    documents = documents_of("one  two\n\nthree é\n")
    assert documents == ["one two", "three é"]
    tokenizer = train_tokenizer(documents, 270)
    ids = encode_documents(tokenizer, documents)
    assert tokenizer.token_to_id(STOP) == 0
    assert ids.count(0) == 2
    assert ids[-1] == 0
    assert tokenizer.decode(ids, skip_special_tokens=False) == "one two\nthree é\n"


def test_a_folder_of_texts_is_read_in_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a.txt").write_text("first")
    assert read_text(tmp_path) == "first\nsecond"


def test_a_short_training_lowers_the_loss_and_repeats_itself() -> None:
    ids = torch.tensor([1, 2, 3, 4, 5, 6, 7, 0] * 40)
    weights, again = (train(TINY, ids, 0, torch.device("cpu")) for _ in range(2))
    loss = training.quality(TINY, weights, ids)["held_out_loss_nat"]
    assert loss < 3.0
    assert torch.equal(weights.embed_VC, again.embed_VC)


def test_the_written_folder_is_a_model_that_decodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text("\n".join(f"the number {i} comes before {i + 1}" for i in range(200)))
    monkeypatch.setitem(training.RECIPES, "shipped", TINY)
    arguments = ["train", "--text", str(text), "--out", str(out), "--steps", "3"]
    monkeypatch.setattr("sys.argv", arguments)
    training.main()
    config = read_config(out)
    assert config == model_config(str(out))
    assert config.eos_token_ids == (0,)
    weights = load_weights(config, out, torch.device("cpu"), torch.float32)
    assert weights.embed_VC.shape == (260, 16)
    assert (out / "prompts.txt").read_text().startswith("the number 1")


def test_an_orthogonalised_matrix_has_singular_values_near_one() -> None:
    draw = torch.randn(24, 10, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalised(draw))
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.3
