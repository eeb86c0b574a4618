"""A decode step of transformers compiled whole for one batch, and kept for later processes.

``torch.compile`` keeps the kernels that it makes but traces the model anew in each process and for
each shape, which takes most of a process once nothing needs compiling (28 blocks on a CPU: 10 to 13
of 15 seconds). Here the same function, compiled by the same compiler for the same fixed shapes, is
kept whole (``aot_compile`` of PyTorch 2.10 and newer) and loaded. Its guards are not kept: one form
serves one batch of one model, and the name of its file holds all that the form depends on, our own
source among it. How each form came about is said in the sample's facts, and the caller holds its
logits against the eager ones. Where this version of PyTorch cannot keep a form, it is compiled as
ever.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from experiments.values import digest_of
from experiments.workloads.decode.oracle_model import transformers_module

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
"""Where the compiler keeps its kernels; without it nothing is kept."""
FOLDER = "whole"
LOADED = "loaded"
MOST_GRAPHS = 64
"""Compiled forms of one ``forward``: one for each concurrency (dynamo's own limit is 8)."""

MADE_BY = ("oracle_compiled.py", "oracle_model.py", "oracle_static.py", "oracle_transformers.py")
"""Our modules that make the model, its cache, and what a step is called with."""

NOT_KEPT = (
    RuntimeError,
    AttributeError,
    AssertionError,
    TypeError,
    ValueError,
    LookupError,
    OSError,
    ImportError,
    EOFError,
    pickle.PickleError,
)
"""What another version of PyTorch may raise where it cannot keep or load a form. An error of the
model itself is raised again by the compilation that follows."""

PASSING = (OSError, EOFError, MemoryError, torch.OutOfMemoryError)
"""Causes that say nothing of the version or the model: a full disk, a full device, a cut write."""
PASSING_TEXTS = ("[Errno ", "out of memory")
"""How the compiler names them where it wraps them in errors of its own."""


class CompiledForward:
    """Takes the place of ``model.forward`` in the steps of one batch.

    Args:
        model: a causal language model of transformers.
        what: all that the form depends on beside model, versions and device, such as its shapes.

    Attributes:
        how: ``loaded``, ``compiled and kept``, or ``compiled`` with the reason why it is not kept;
            empty before the first call, and where the compiler made nothing (it is switched off).
    """

    def __init__(self, model: Any, what: str) -> None:
        self._model, self._what = model, what
        self._run: Callable[..., Tensor] | None = None
        self.how = ""

    def __call__(self, **named: Any) -> SimpleNamespace:
        """The model's output, of which a step needs the logits."""
        if self._run is not None:
            return SimpleNamespace(logits=self._run(self._model, **named))
        before = _graphs()
        self._run = self._prepared(named)
        logits = self._run(self._model, **named)
        if self.how != LOADED and _graphs() == before:
            self.how = ""
        return SimpleNamespace(logits=logits)

    def _prepared(self, named: Mapping[str, Any]) -> Callable[..., Tensor]:
        """The form, loaded or compiled.

        Where this version cannot keep it, that is noted beside its place and not tried again: each
        further process would compile twice. What may pass is tried again.
        """
        path = self._path()
        reason = f"{VARIABLE} is not set" if path is None else _refused(path)
        if path is not None and not reason:
            if path.is_file():
                with contextlib.suppress(*NOT_KEPT):  # damaged, or of another driver: made anew
                    return self._loaded(path)
            try:
                return self._kept(named, path)
            except NOT_KEPT as error:
                reason = _said(error)
                _refuse(path, error)
        self.how = f"compiled (not kept: {reason})"
        return _plain()

    def _loaded(self, path: Path) -> Callable[..., Tensor]:
        with path.open("rb") as file:
            found = _unguarded(torch.compiler.load_compiled_function(file))
        self.how = LOADED
        return found

    def _kept(self, named: Mapping[str, Any], path: Path) -> Callable[..., Tensor]:
        """Compile for these very arguments, and leave the form for the next process."""
        found = _ahead(self._model, named)
        self.how = "compiled and kept"
        try:
            with _whole(path) as part:
                found.save_compiled_function(str(part))
        except NOT_KEPT as error:
            _refuse(path, error)
            self.how = f"compiled (not kept: {_said(error)})"
        return _unguarded(found)

    def _path(self) -> Path | None:
        """The file of this form."""
        folder = os.environ.get(VARIABLE)
        if not folder:
            return None
        device = next(self._model.parameters()).device
        kind = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        versions = (sys.version, torch.__version__, transformers_module().__version__)
        shapes = [(n, tuple(p.shape), str(p.dtype)) for n, p in self._model.named_parameters()]
        depends = f"{versions} {kind} {self._model.config} {shapes} {self._what} {_own_source()}"
        return Path(folder) / FOLDER / digest_of(depends)


def _own_source() -> str:
    """The digest of our modules that make a step: a form of their older text is another one."""
    folder = Path(__file__).parent
    return digest_of(" ".join(digest_of((folder / name).read_bytes()) for name in MADE_BY))


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Where to write, moved to its place once it is whole; what was cut leaves nothing there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _logits(model: Any, **named: Any) -> Tensor:
    """What is compiled: the model as it is called, without the wrapping of its output."""
    found: Tensor = model(**named).logits
    return found


def _graphs() -> int:
    """Graphs that the compiler has made in this process."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else int(utils.counters["stats"]["unique_graphs"])


def _plain() -> Callable[..., Tensor]:
    import torch._dynamo.config as dynamo

    dynamo.recompile_limit = MOST_GRAPHS
    compiled: Callable[..., Tensor] = torch.compile(_logits, fullgraph=True, dynamic=False)
    return compiled


def _ahead(model: Any, named: Mapping[str, Any]) -> Any:
    """The function compiled for these arguments before it is called, so that it can be written."""
    import torch._dynamo.config as dynamo

    with dynamo.patch(enable_aot_compile=True):
        compiling: Any = torch.compile(
            _logits, fullgraph=True, dynamic=False, options={"guard_filter_fn": _no_guards}
        )
        return compiling.aot_compile(((model,), dict(named)))


def _refusal(path: Path) -> Path:
    return path.with_name(f"{path.name}.refused")


def _refused(path: Path) -> str:
    """Why this form could not be kept before; empty where nothing is known against it."""
    noted = _refusal(path)
    return noted.read_text(encoding="utf-8") if noted.is_file() else ""


def _refuse(path: Path, error: BaseException) -> None:
    """Note why this form is not kept, where the same version and model would always say so."""
    if _may_pass(error):
        return
    with contextlib.suppress(OSError):  # no place for the note: the next process tries again
        path.parent.mkdir(parents=True, exist_ok=True)
        _refusal(path).write_text(_said(error), encoding="utf-8")


def _may_pass(error: BaseException | None) -> bool:
    """Whether the error, or one that it stands for, has a cause that may be gone next time."""
    while error is not None:
        text = str(error)
        if isinstance(error, PASSING) or any(one in text for one in PASSING_TEXTS):
            return True
        error = error.__cause__ or error.__context__
    return False


def _said(error: BaseException) -> str:
    """The first line of an error, with its kind."""
    return f"{type(error).__name__}: {error}".partition("\n")[0][:120]


def _unguarded(found: Any) -> Callable[..., Tensor]:
    found.disable_guard_check()
    run: Callable[..., Tensor] = found
    return run


def _no_guards(guards: Any) -> list[bool]:
    """Which guards are kept: none can be written to a file that hold an object's identity."""
    return [False for _ in guards]
