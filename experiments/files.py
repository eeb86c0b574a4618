"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from levers.errors import StoreError


def write_atomically(path: Path, text: str) -> None:
    """Write a whole file or none of it: temporary file, fsync, rename, fsync of the folder.

    Raises:
        StoreError: the disk is full or read-only; the file that was there before is untouched.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        cure = "free space or make the folder writable, then try again (a run: with --resume)"
        if isinstance(error, FileNotFoundError):
            cure = "name a file in a folder that is there"
        raise StoreError(f"cannot write {path}: {error.strerror}", cure=cure) from error


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
