"""Training text and its tokenizer: documents, the stop token between them, a held-out part."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

STOP = "\n"
"""End of a document of one line, and the token at which a stream stops."""
FILE_STOP = "<|end of file|>"
"""The same where a document is a file."""
LARGEST_FILE_CHARACTERS = 400_000
"""Longer files are data more often than text (tables, encoded blobs) and are left out."""
ENCODED_AT_ONCE = 256
"""Documents that are encoded in one call: their encodings are in memory together."""

_CHAPTER = re.compile(r"^[1-9A-Z][A-Za-z ]* \d+$")
_VERSE = re.compile(r"^ {1,3}\d{1,3} (.*)$")


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents to train on, those held out for prompts, and the text that ends each.

    ``digest`` is the SHA-256 of all text that was read, in order.
    """

    documents: Sequence[str]
    held_out: Sequence[str]
    stop: str
    digest: str

    def head(self, characters: int) -> Iterator[str]:
        """Documents from the beginning, until there are so many characters."""
        for document in self.documents:
            yield document
            characters -= len(document)
            if characters <= 0:
                return

    @property
    def prompts_text(self) -> str:
        """The held-out documents as one text, in which the tokenizer finds the stop token."""
        return self.stop.join(self.held_out) + self.stop


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


def lines_corpus(text: str, held_out_characters: int) -> Corpus:
    """A plain text, one document a line."""
    kept, held_out = split_tail(documents_of(text), held_out_characters)
    return Corpus(kept, held_out, STOP, hashlib.sha256(text.encode()).hexdigest())


def bible_corpus(text: str, held_out_book: str) -> Corpus:
    """What the program ``bible`` prints, a document a verse; one book is held out."""
    verses = verses_of(text)
    return Corpus(
        [verse for book, verse in verses if book != held_out_book],
        [verse for book, verse in verses if book == held_out_book],
        STOP,
        hashlib.sha256(text.encode()).hexdigest(),
    )


def files_corpus(
    folder: Path, pattern: str, held_out_characters: int, most_characters: int
) -> Corpus:
    """The files of a folder as they are, a document each.

    Their order is that of the SHA-256 of their paths in the folder: the same on every machine that
    has them, with no package beside itself. A text that was read before is left out, so that what
    is held out was not trained on under another name.
    """
    ordered = sorted(folder.rglob(pattern), key=lambda path: _path_digest(folder, path))
    documents: list[str] = []
    seen: set[bytes] = set()
    digest, characters = hashlib.sha256(), 0
    for path in ordered:
        if characters >= most_characters or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        key = hashlib.sha256(text.encode()).digest()
        if not text.strip() or len(text) > LARGEST_FILE_CHARACTERS or key in seen:
            continue
        seen.add(key)
        digest.update(key)
        documents.append(text)
        characters += len(text)
    kept, held_out = split_tail(documents, held_out_characters)
    return Corpus(kept, held_out, FILE_STOP, digest.hexdigest())


def _path_digest(folder: Path, path: Path) -> str:
    return hashlib.sha256(str(path.relative_to(folder)).encode()).hexdigest()


def split_tail(documents: list[str], characters: int) -> tuple[list[str], list[str]]:
    """Hold out so many characters from the end, but at most a tenth of the documents."""
    taken, count = 0, 0
    while taken < characters and count < len(documents) // 10:
        count += 1
        taken += len(documents[-count])
    return documents[: len(documents) - count], documents[len(documents) - count :]


def train_tokenizer(corpus: Corpus, vocab_size: int, characters: int) -> Tokenizer:
    """A byte-level BPE tokenizer: every text has an encoding, the stop token is token 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(corpus.stop, special=True)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus.head(characters), trainer)
    return tokenizer


def encode_documents(
    tokenizer: Tokenizer, documents: Sequence[str], stop: str = STOP
) -> NDArray[np.int32]:
    """Token ids of all documents, each followed by the stop token."""
    parts: list[NDArray[np.int32]] = [np.zeros(0, np.int32)]
    for start in range(0, len(documents), ENCODED_AT_ONCE):
        few = [document + stop for document in documents[start : start + ENCODED_AT_ONCE]]
        parts += [np.asarray(one.ids, np.int32) for one in tokenizer.encode_batch_fast(few)]
    return np.concatenate(parts)


def read_text(path: Path, pattern: str = "*.txt") -> str:
    """The text of a file, or of a folder's files in the order of their names."""
    files = sorted(path.rglob(pattern)) if path.is_dir() else [path]
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
