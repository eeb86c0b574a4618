"""Results of passed checks on disk, found again by the digest of all that they depend on.

The key covers the code of levers, kernels, workloads and battery, the lever and both settings, the
workload's parameters (the model's digest among them), the models with which tokens are compared,
the seed of the inputs, the policy, the other levers that are on with their code, the variables of
the processes, and the stack of versions and device; that of the sanitizers also the version of
their tool. Checks of the operation alone see neither other levers nor how pairs are timed nor the
workload's parameters, but for what those make of every process, so one result of theirs serves
every model. Only a passed check is kept: a failed one is measured again, and a process that failed
leaves nothing.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.code_watch import CodeChanged, CodeWatch
from experiments.parity_records import CheckResult
from experiments.spec import AbSpec
from experiments.values import digest_of
from levers import catalog
from levers.errors import LevergateError
from levers.source import source_digest, source_files

FOLDER = Path("cache") / "parity"

ROOT = Path(__file__).parents[2]

CODE = ("levers", "experiments/parity", "experiments/workloads")
"""Folders whose Python source a result depends on, from the project's root."""

OF_THE_OPERATION = ("op", "memcheck", "graph", "async")
"""Checks that run a lever's own cases in processes without a session."""

OF_TOKENS = ("tokens", "stack", "whole-stack")
"""Checks that decode with the models that are named for the tokens; no other one sees them."""

OF_EVERY_PROCESS = ("threads",)
"""Parameters that every process has on a CPU: an operation may do otherwise on more threads."""


class ParityCache:
    """One folder of results, such as ``$LEVERGATE_HOME/cache/parity``."""

    def __init__(self, folder: Path, stack: str) -> None:
        """Use a folder, which is made when the first result is kept.

        Args:
            folder: where the results lie.
            stack: device kind, versions, variables and plugged-in code that the results are bound
                to, as one line.
        """
        self.folder = folder
        self._stack = stack
        self._watch = CodeWatch.of(code_files(ROOT))
        self._code = code_digest(ROOT)
        self._sources: dict[str, str] = {}

    def key(self, check: str, spec: AbSpec, extra: str = "") -> str:
        """The digest that names a check's result for this comparison."""
        unseen: dict[str, Any] = {"looks": (), "budget_s": None, "oracle": None}
        if check not in OF_TOKENS:
            unseen["tokens_on"] = ()
        if check in OF_THE_OPERATION:
            seen = OF_EVERY_PROCESS if spec.device_type == "cpu" else ()
            left = {name: value for name, value in spec.parameters.items() if name in seen}
            unseen |= {"parameters": left, "stack": (), "interleaved": False}
        asked = spec.model_copy(update=unseen)
        # The tested lever counts as it is now, whatever it was when the comparison was asked for.
        sources = [f"{name} {self._source(name)}" for name in (*asked.others, spec.lever)]
        parts = [check, asked.model_dump_json(), extra, self._stack, self._code, *sources]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def bound(self, levers: Sequence[str]) -> tuple[str, ...] | None:
        """What a process with these levers on depends on beside its task, as digests and texts.

        None where the source of one cannot be found: nothing of it may be kept.
        """
        sources = [self._source(name) for name in levers]
        return (self._stack, self._code, *sources) if all(sources) else None

    def _source(self, lever: str) -> str:
        """The digest of a lever's source, which may be a plug-in's; read once.

        Empty for a name that is no lever (of a set), and for one that cannot be read now.
        """
        if lever not in self._sources:
            try:
                found = catalog.get(lever)
                digest, files = source_digest(found), source_files(found)
            except LevergateError:
                return ""
            self._watch.add(files)
            self._sources[lever] = digest
        return self._sources[lever]

    def edited(self) -> bool:
        """Whether the code is no longer that of the keys, so that the result may be of either."""
        try:
            self._watch.look()
        except CodeChanged:
            return True
        return False

    def has(self, key: str) -> bool:
        """Whether a result is kept under this key."""
        return (self.folder / f"{key}.json").is_file()

    def get(self, key: str) -> CheckResult | None:
        """A kept result, marked as cached; None where there is none or it cannot be read."""
        try:
            text = (self.folder / f"{key}.json").read_text()
            kept = CheckResult.model_validate_json(text)
        except (OSError, ValueError):  # also no text, no such record
            return None
        return kept.model_copy(update={"cached": True, "seconds": 0.0})

    def put(self, key: str, result: CheckResult) -> str:
        """Keep a passed result; returns why it could not be kept, or nothing."""
        if result.status != "passed":
            return ""
        if self.edited():
            return "not kept in the cache: the code has changed since it was asked for"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self.folder, delete=False) as file:
                file.write(result.model_dump_json())
            Path(file.name).replace(self.folder / f"{key}.json")
        except OSError as error:
            return f"not kept in the cache: {error.strerror}"
        return ""


def code_digest(root: Path) -> str:
    """Digest of the Python source that results depend on."""
    found = (f"{name} {digest_of(path.read_bytes())}" for name, path in code_files(root))
    return digest_of("\n".join(found))


def code_files(root: Path) -> tuple[tuple[str, Path], ...]:
    """The files of that source, by their paths from the root.

    What an editor leaves beside a file (a lock, a checkpoint) begins with a dot and is none of it.
    """
    found = (path for folder in CODE for path in sorted((root / folder).rglob("*.py")))
    places = ((path.relative_to(root), path) for path in found if path.is_file())
    return tuple(
        (str(place), path)
        for place, path in places
        if not any(part.startswith(".") for part in place.parts)
    )
