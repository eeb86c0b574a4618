"""Counts compilations and autotunings, so that none is timed unseen; ends what they leave."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

WORKERS_LIMIT_S = 20.0
"""They end within seconds, unless they hang."""


class CompilationCounter:
    """Counts what torch.compile, Triton's compiler and the autotuners did since it was made.

    A module that is not loaded has compiled nothing; one that is loaded later is seen at the next
    :meth:`watch`.
    """

    def __init__(self) -> None:
        self._triton = 0
        self._watched: set[str] = set()
        self.watch()

    def watch(self) -> None:
        """Hook Triton's compiler and autotuner if they are loaded by now."""
        runtime: Any = sys.modules.get("triton.runtime.autotuner")
        if runtime is not None and "autotuner" not in self._watched:
            self._watched.add("autotuner")
            tuner: Any = runtime.Autotuner
            tuner._bench = self._counting(tuner._bench)
        knobs: Any = sys.modules.get("triton.knobs")
        if knobs is not None and "compiler" not in self._watched:
            self._watched.add("compiler")
            knobs.runtime.jit_cache_hook = self._on_compile(knobs.runtime.jit_cache_hook)

    def count(self) -> int:
        """Compilations and autotuned configurations so far."""
        products = _products()
        tunings = 0 if products is None else int(products.tunings())
        return self._triton + _dynamo_frames() + tunings

    def _counting(self, wrapped: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self._triton += 1
            return wrapped(*arguments, **named)

        return call

    def _on_compile(self, before: Callable[..., Any] | None) -> Callable[..., Any]:
        """A hook that Triton calls for each kernel it does not find in memory; False goes on."""

        def hook(*arguments: Any, **named: Any) -> Any:
            self._triton += 1
            return before(*arguments, **named) if before is not None else False

        return hook


def end_compile_workers() -> None:
    """End the processes that torch.compile keeps for the next compilation; no lever started them.

    They would end by themselves, but after this process, and be found running. Those that hang are
    left, after :data:`WORKERS_LIMIT_S`, to whoever looks for processes that were left; nothing is
    raised.
    """
    compiling: Any = sys.modules.get("torch._inductor.async_compile")
    if compiling is None:
        return

    def shut_down() -> None:
        with contextlib.suppress(OSError, RuntimeError, subprocess.SubprocessError):
            compiling.shutdown_compile_workers()

    asked = threading.Thread(target=shut_down, daemon=True)
    asked.start()
    asked.join(WORKERS_LIMIT_S)


def _products() -> Any:
    """What chose the algorithms of cuBLASLt's products; None where nothing asked for one."""
    module: Any = sys.modules.get("levers.kernels.cublaslt")
    return None if module is None else module.DEVICES


def _dynamo_frames() -> int:
    utils: Any = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return 0
    counters = utils.counters
    return int(counters["frames"]["total"]) + int(counters["inductor"]["fxgraph_cache_miss"])


def autotune_winners() -> dict[str, str]:
    """What Triton's autotuners and the choice of products chose in this process, by kernel and key.

    Walks all objects, so it belongs in an untimed pass.
    """
    products = _products()
    winners: dict[str, str] = {} if products is None else dict(products.winners())
    runtime: Any = sys.modules.get("triton.runtime.autotuner")
    if runtime is None:
        return winners
    import gc

    for found in gc.get_objects():
        if type(found) is runtime.Autotuner:
            name = getattr(found.base_fn, "__name__", "kernel")
            winners.update({f"{name}[{key}]": str(best) for key, best in found.cache.items()})
    return winners
