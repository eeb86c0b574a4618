"""All known levers: the built-in ones by an explicit tuple, then entry points, then a folder.

A third party's lever arrives as an entry point of group ``levergate.levers`` (its value names a
lever object, ``package.module:LEVER``), or as a file with a ``LEVER`` in the folder that
``$LEVERGATE_LEVERS`` names. A lever that does not import, or that is not acceptable as a lever, is
listed as broken with the reason and harms nothing else. Torch is never imported here; a lever file
that imports it at its head only makes this slow.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from levers.base import Lever
from levers.errors import BadParameter, BrokenLever, UnknownName
from levers.lint import complaints

BUILT_IN: tuple[str, ...] = (
    "levers.attn_backend:LEVER",
    "levers.cached_cu_seqlens:LEVER",
    "levers.compile_slat_flow:LEVER",
    "levers.compile_ss_flow:LEVER",
    "levers.cuda_graph:LEVER",
    "levers.decode_attn:LEVER",
    "levers.fa2_nsplits_cap:LEVER",
    "levers.fp8_linear:LEVER",
    "levers.fused_affine_norm:LEVER",
    "levers.fused_block:LEVER",
    "levers.fused_chain:LEVER",
    "levers.fused_gate_residual:LEVER",
    "levers.fused_linear_grads:LEVER",
    "levers.fused_mlp_hidden:LEVER",
    "levers.fused_modulate:LEVER",
    "levers.fused_qk_norm_rope:LEVER",
    "levers.fused_residual_norm:LEVER",
    "levers.gemm_epilogue_mlp:LEVER",
    "levers.longest_first:LEVER",
    "levers.mxfp4_weights:LEVER",
    "levers.per_gpu_batch:LEVER",
    "levers.qk_norm_rope:LEVER",
    "levers.segment_sum_broadcast:LEVER",
    "levers.tuned_gemm:LEVER",
)
"""``module:ATTRIBUTE`` of each built-in lever; the last part of the module is the lever's name."""

GROUP = "levergate.levers"
FOLDER_VARIABLE = "LEVERGATE_LEVERS"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the catalog: a lever, or why it is broken (a traceback or a complaint)."""

    name: str
    origin: str
    lever: Lever | None = None
    broken: str = ""


@dataclass(frozen=True, slots=True)
class _Source:
    name: str
    origin: str
    load: Callable[[], object]


def get(name: str) -> Lever:
    """The lever of that name.

    Raises:
        UnknownName: there is none; the message suggests the closest.
        BrokenLever: it did not import or is not acceptable; its traceback is in :func:`listed`.
    """
    sources = tuple(_sources())
    named = [source for source in sources if source.name == name]
    if not named:
        raise UnknownName("lever", name, {source.name for source in sources})
    return _usable(_entries(named))


def named(names: Collection[str]) -> tuple[Entry, ...]:
    """The entries of these names, from one look at what is installed; unknown names have none."""
    return _entries([source for source in _sources() if source.name in names])


def listed() -> tuple[Entry, ...]:
    """Every lever in the order of the catalog, the broken ones with the reason."""
    return _entries(list(_sources()))


def _usable(entries: tuple[Entry, ...]) -> Lever:
    for entry in entries:
        if entry.lever is not None:
            return entry.lever
    why = entries[0].broken.strip().splitlines()[-1]
    raise BrokenLever(
        f"lever {entries[0].name!r} of {entries[0].origin} is broken: {why}",
        cure="repair it or remove it; levergate list shows all of the error",
    )


def _entries(sources: list[_Source]) -> tuple[Entry, ...]:
    """Load each source; two of one name are both broken, since neither may win quietly."""
    origins: dict[str, list[str]] = {}
    for source in sources:
        origins.setdefault(source.name, []).append(source.origin)
    return tuple(
        _loaded(source)
        if len(origins[source.name]) == 1
        else Entry(
            source.name,
            source.origin,
            broken=f"several levers of this name: {', '.join(origins[source.name])}",
        )
        for source in sources
    )


def _loaded(source: _Source) -> Entry:
    """Load one source: whatever foreign code raises at import is kept as its traceback."""
    try:
        lever = source.load()
        found = complaints(lever)
    except (Exception, SystemExit):  # noqa: BLE001 a plugin's import is a boundary to foreign code
        return Entry(source.name, source.origin, broken=traceback.format_exc())
    if not found and isinstance(lever, Lever):
        if lever.name == source.name:
            return Entry(lever.name, source.origin, lever=lever)
        found = (f"{source.origin} is called {source.name!r} and its lever {lever.name!r}",)
    return Entry(source.name, source.origin, broken="; ".join(found))


def _sources() -> Iterator[_Source]:
    for target in BUILT_IN:
        module, attribute = target.split(":")
        yield _Source(module.rpartition(".")[2], module, _attribute(module, attribute))
    for point in installed(GROUP):
        origin = f"{point.dist.name if point.dist else 'an entry point'} ({point.value})"
        yield _Source(point.name, origin, point.load)
    yield from _folder()


def installed(group: str) -> tuple[importlib.metadata.EntryPoint, ...]:
    """The entry points of a group, of what is installed now.

    To read them takes ten milliseconds in an environment of two hundred packages, twenty times as
    long as all else of :func:`get`, so they are read once for each state of the search path: to
    install or remove a package changes its folder.
    """
    return _read(group, tuple((place, _changed_ns(Path(place))) for place in sys.path))


@functools.lru_cache(maxsize=2)
def _read(
    group: str, places: tuple[tuple[str, int], ...]
) -> tuple[importlib.metadata.EntryPoint, ...]:
    del places
    return tuple(importlib.metadata.entry_points(group=group))


def _changed_ns(place: Path) -> int:
    """When a folder of the search path last changed; 0 where it is not there."""
    try:
        return place.stat().st_mtime_ns
    except OSError:
        return 0


def _attribute(module: str, attribute: str) -> Callable[[], object]:
    return lambda: getattr(importlib.import_module(module), attribute)


def _folder() -> Iterator[_Source]:
    """The lever files of ``$LEVERGATE_LEVERS``.

    Raises:
        BadParameter: the folder cannot be read; it is never taken for an empty one.
    """
    named = os.environ.get(FOLDER_VARIABLE, "")
    if not named:
        return
    try:
        files = sorted(p for p in Path(named).iterdir() if p.suffix == ".py" and p.name[0] != "_")
    except OSError as error:
        raise BadParameter(
            f"the lever folder {named} ({FOLDER_VARIABLE}) cannot be read: {error.strerror}",
            cure=f"name a readable folder or unset {FOLDER_VARIABLE}",
        ) from error
    for file in files:
        yield _Source(file.stem, str(file), _file(file))


def _file(path: Path) -> Callable[[], object]:
    def load() -> object:
        return _module(path).LEVER

    return load


def _module(path: Path) -> ModuleType:
    """Import a lever file under a name of its own, once for each state of the file."""
    name = f"levergate_folder_{path.stem}"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path):
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with contextlib.ExitStack() as unless_it_imports:
        unless_it_imports.callback(sys.modules.pop, name)
        spec.loader.exec_module(module)
        unless_it_imports.pop_all()
    return module
