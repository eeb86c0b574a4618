"""The digest of a lever's source: the identity that a verdict and a cached check are bound to."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

from levers.base import Lever
from levers.errors import BrokenLever

KERNELS = "levers.kernels"
SHARED = ("levers.site_lever", "levers.step_lever", "levers.compiler", "levers.decode_lever")
"""The bases of levers: they decide what these do, as their own file does."""

OWN = {"levers", "experiments"}
"""The packages that come with levergate."""

INSTALLED = ("site-packages", "dist-packages")
"""Folders of what is installed: a version of it is recorded, and its files are not followed."""

RELATIVE = re.compile(rb"\bfrom[\s\\]*\.")
"""The beginning of an import relative to the file's own package."""


def source_digest(lever: Lever) -> str:
    """SHA-256 (16 hex digits) over the lever's file and every kernel module that it reaches.

    Raises:
        BrokenLever: a file of the lever cannot be found or read as Python.
    """
    return _digest(source_files(lever))


def modules_digest(names: Iterable[str]) -> str:
    """The same of some modules, with what they import from the packages that they lie in.

    A package that comes with levergate is not followed: its code has a digest of its own.

    Raises:
        BrokenLever: a file cannot be read as Python.
    """
    return _digest(module_files(names))


def module_files(names: Iterable[str]) -> tuple[tuple[str, Path], ...]:
    """The files of :func:`modules_digest`, with the names of their modules.

    Raises:
        BrokenLever: a file cannot be read as Python.
    """
    waiting = list(names)
    return _reached(waiting, {name.partition(".")[0] for name in waiting} - OWN)


def _digest(files: Iterable[tuple[str, Path]]) -> str:
    total = hashlib.sha256()
    for name, path in files:
        total.update(f"{name}\n".encode())
        total.update(path.read_bytes())
    return total.hexdigest()[:16]


def source_files(lever: Lever) -> tuple[tuple[str, Path], ...]:
    """The modules that make up the lever with their files, by name.

    These are the module of its class, the one that holds it as ``LEVER``, and what they import from
    ``levers.kernels``, a shared base or the lever's own package, also inside functions and of one
    another.
    Imports are read from the source, so that torch is not imported for a digest.

    Raises:
        BrokenLever: a file of the lever cannot be found or read as Python.
    """
    own = type(lever).__module__
    holders = [name for name, held in list(sys.modules.items()) if _holds(held, lever)]
    packages = {name.partition(".")[0] for name in (own, *holders)} - OWN
    found = _reached((own, *holders), {KERNELS, *SHARED, *packages})
    if own not in dict(found):
        raise BrokenLever(
            f"{lever.name}: its module {own} has no file, so its source has no digest",
            cure="define the lever in a file",
        )
    return found


def _reached(names: Iterable[str], roots: set[str]) -> tuple[tuple[str, Path], ...]:
    """The modules with their files, and those inside the roots that they import, by name."""
    found: dict[str, Path] = {}
    waiting = [part for name in names for part in _with_parents(name)]
    while waiting:
        name = waiting.pop()
        path = _file(name)
        if name in found or path is None:
            continue
        found[name] = path
        waiting += _imports(name, path, roots)
    return tuple(sorted(found.items()))


def _holds(module: object, lever: Lever) -> bool:
    """Whether the module defines it as its ``LEVER``; one that only imports it does not.

    Attributes that are made on demand are not woken.
    """
    names = getattr(module, "__dict__", {})
    path = names.get("__file__")
    if names.get("LEVER") is not lever or not path or not Path(path).is_file():
        return False
    return any(
        isinstance(target, ast.Name) and target.id == "LEVER"
        for node in _parsed(Path(path), Path(path).read_bytes()).body
        for target in _targets(node)
    )


def _parsed(path: Path, text: bytes) -> ast.Module:
    """The file's syntax.

    Raises:
        BrokenLever: it has none, as a file that is being written.
    """
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise BrokenLever(f"{path} is no Python: {error}", cure="correct the file") from error


def _targets(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def _inside(name: str, roots: set[str]) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def _local(top: str) -> bool:
    """Whether a top-level package or module lies outside of what is installed or comes with Python.

    Such code is the user's own, as much a part of a lever as the lever's file.
    """
    if not top or top in OWN or top in sys.stdlib_module_names:
        return False
    path = _file(top)
    places = _folders(top) if path is None else [path]
    return bool(places) and not any(one in INSTALLED for place in places for one in place.parts)


def _file(name: str) -> Path | None:
    """The source file of a module, imported or not; None where the name is no module with one."""
    known = sys.modules.get(name)
    if known is not None:
        origin = getattr(known, "__file__", None)
    else:
        spec = _spec(name)
        origin = spec.origin if spec else None
    return Path(origin) if origin and origin.endswith(".py") else None


def _folders(name: str) -> list[Path]:
    """Where the modules of a package lie; also of one that is only folders, without a file."""
    known = sys.modules.get(name)
    found = getattr(known, "__path__", None)
    if known is None and (spec := _spec(name)) is not None:
        found = spec.submodule_search_locations
    return [Path(one) for one in found or ()]


def _spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def _with_parents(name: str) -> list[str]:
    """A module and the packages around it, which are imported before it.

    Those that come with levergate have a digest of their own.
    """
    parts = name.split(".")
    if parts[0] in OWN:
        return [name]
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _imports(name: str, path: Path, roots: set[str]) -> Iterator[str]:
    """Every module inside the roots that the file may import, as absolute names."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    text, foreign = path.read_bytes(), name.partition(".")[0] not in OWN
    if not foreign and not _mentions(text, roots):
        return

    def followed(module: str) -> bool:
        return _inside(module, roots) or (foreign and _local(module.partition(".")[0]))

    for node in _statements(_parsed(path, text)):
        if isinstance(node, ast.Import):
            for one in (alias.name for alias in node.names if followed(alias.name)):
                yield from _with_parents(one)
        elif isinstance(node, ast.ImportFrom) and followed(_absolute(package, node)):
            base = _absolute(package, node)
            yield from _with_parents(base)
            if _is_package(base):
                yield from (f"{base}.{alias.name}" for alias in node.names)


def _mentions(text: bytes, roots: set[str]) -> bool:
    """Whether the file can import from the roots at all: by name, or relative to itself."""
    return RELATIVE.search(text) is not None or any(root.encode() in text for root in roots)


def _statements(module: ast.Module) -> Iterator[ast.AST]:
    """Every statement, at any depth; no expression can import."""
    waiting: list[ast.AST] = [module]
    while waiting:
        node = waiting.pop()
        yield node
        for block in ("body", "orelse", "handlers", "finalbody", "cases"):
            inside = getattr(node, block, ())
            waiting += inside if isinstance(inside, list) else ()


def _is_package(name: str) -> bool:
    """Whether names imported from it may be modules; asked first, since a look-up imports it."""
    path = _file(name)
    return bool(_folders(name)) if path is None else path.name == "__init__.py"


def _absolute(package: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    above = parts[: len(parts) - node.level + 1]
    return ".".join([*above, node.module] if node.module else above)
