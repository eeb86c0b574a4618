"""Training text and its tokenizer: one document a line, the line feed is the stop token."""

from __future__ import annotations

import re
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

STOP = "\n"
"""End of a document, and the token at which a stream stops."""

_CHAPTER = re.compile(r"^[1-9A-Z][A-Za-z ]* \d+$")
_VERSE = re.compile(r"^ {1,3}\d{1,3} (.*)$")


def documents_of(text: str) -> list[str]:
    """One document per line of a plain text, blank lines and doubled blanks removed."""
    lines = (" ".join(line.split()) for line in text.splitlines())
    return [line for line in lines if line]


def verses_of(text: str) -> list[tuple[str, str]]:
    """``(book, verse)`` pairs of what the Debian program ``bible`` prints.

    The program prints a heading ``Genesis 1``, then verses that begin with their number and go on
    in lines without one.
    """
    verses: list[tuple[str, list[str]]] = []
    book, open_verse = "", False
    for line in text.splitlines():
        found = _VERSE.match(line)
        if found:
            verses.append((book, [found[1]]))
            open_verse = True
        elif _CHAPTER.match(line):
            book, open_verse = line.rsplit(" ", 1)[0], False
        elif not line.strip():
            open_verse = False
        elif open_verse:
            verses[-1][1].append(line)
    return [(name, " ".join(" ".join(parts).split())) for name, parts in verses]


def train_tokenizer(documents: list[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE tokenizer: every text has an encoding, :data:`STOP` is token 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(STOP, special=True)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def encode_documents(tokenizer: Tokenizer, documents: list[str]) -> list[int]:
    """Token ids of all documents, each followed by :data:`STOP`."""
    ids: list[int] = []
    for encoding in tokenizer.encode_batch([document + STOP for document in documents]):
        ids.extend(encoding.ids)
    return ids


def read_text(path: Path) -> str:
    """The text of a file, or of all ``*.txt`` files of a folder in the order of their names."""
    files = sorted(path.rglob("*.txt")) if path.is_dir() else [path]
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
