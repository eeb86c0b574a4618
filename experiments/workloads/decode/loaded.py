"""Which weights a process has loaded, by their digest, held against that with which its run began.

A model's folder may change while a run goes on, and what is decoded then is another model's. To
read 8 GB once more for a digest takes seconds in each process, so the digest is kept in a folder
that all processes share and found again by what the file system says of the files (inode, size,
times). Only the first process after a change reads them for it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

from experiments.files import write_atomically
from experiments.values import Scalar, digest_of
from experiments.workloads.base import DIGESTS_VARIABLE
from experiments.workloads.decode import folder
from experiments.workloads.decode.folder import PROMPTS_FILE, is_random, model_digest, model_folder
from levers.errors import InputsChanged, StoreError

SETTLED_S = 2.0
"""A file that is younger may change once more within a tick of its clock: nothing is kept of it."""

DIGITS = 16
"""Of a digest that was kept whole."""

CURE = "leave the folder as it is while a run goes on, and start a new run for other weights"


def confirm(parameters: Mapping[str, Scalar]) -> str:
    """The digest of the model that was just loaded; empty where it comes from a seed.

    Args:
        parameters: of the process, with the digest that its run began with.

    Raises:
        InputsChanged: it is another one, or the files have gone.
    """
    model, began = str(parameters["model"]), str(parameters.get("model_digest") or "")
    if is_random(model):
        return ""
    try:
        found = loaded_digest(model)
    except OSError as error:
        said = f"the files of {model} went away while the run went on ({error})"
        raise InputsChanged(said, cure=CURE) from error
    if began and found != began:
        raise InputsChanged(
            f"the weights of {model} have changed since the run began ({began} -> {found})",
            cure=CURE,
        )
    return found


def loaded_fact(digest: str) -> dict[str, Scalar]:
    """What a sample says of the weights that its process loaded; nothing of those from a seed."""
    return {"weights_loaded": digest} if digest else {}


def loaded_digest(model: str) -> str:
    """The digest of a folder's files as they are now."""
    kept, newest_s = _kept(model)
    if kept is None:
        return model_digest(model)
    with contextlib.suppress(OSError):
        found = kept.read_text(encoding="utf-8")
        if len(found) == DIGITS:
            return found
    found = model_digest(model)
    if newest_s < time.time() - SETTLED_S and _kept(model)[0] == kept:
        with contextlib.suppress(OSError, StoreError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(kept, found)
    return found


def _kept(model: str) -> tuple[Path | None, float]:
    """Where the digest of these very files is kept, and when the youngest of them was changed."""
    place = os.environ.get(DIGESTS_VARIABLE)
    files = (*folder.digested_files(model_folder(model)), PROMPTS_FILE)
    seen = [(path.name, path.stat()) for path in files if path.exists()]
    by = digest_of(Path(folder.__file__).read_bytes())
    told = [
        (name, one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns)
        for name, one in seen
    ]
    newest_s = max(max(one.st_mtime, one.st_ctime) for _, one in seen)
    return (Path(place) / digest_of(f"{by} {told}") if place else None), newest_s
