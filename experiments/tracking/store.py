"""Which MLflow store is meant, who writes to it, and the environment that its processes get."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from experiments.values import Value
from levers.errors import BadParameter

SQLITE = "sqlite:///"
URI_VARIABLE = "MLFLOW_TRACKING_URI"

REMOVED = ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME", URI_VARIABLE)
"""Variables that would make MLflow write into somebody else's run or store."""

VARIABLES = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}
"""Asynchronous logging gained nothing and lost data on kill; HTTP defaults wait 120 s, 7 times."""

CONNECT_TIMEOUT_S = 5.0
"""How long a server may take to accept a connection."""

NEEDED = ("mlflow", "tenacity")
"""Packages of the writing process alone."""

ROOT = Path(__file__).resolve().parents[2]

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Request(Value):
    """What the writing process is asked.

    Attributes:
        own: the store is the one in our home, so it may be made and upgraded.
        artifacts: URI of the artifact root, or empty where a server decides.
        timeout_s: the process ends itself after this time; ``retry_s`` bounds one call's retries.
        results: file that gets one JSON line a result.
        folders: one folder a run, named by the run's id.
        known: (run id, lever, version) of the runs to look for, or None.
    """

    uri: str
    own: bool
    artifacts: str
    locks: str
    timeout_s: float
    retry_s: float
    results: str
    folders: tuple[str, ...] = ()
    known: tuple[tuple[str, str, str], ...] | None = None


def default_uri(home: Path) -> str:
    """The store in our own home, as an absolute URI: a relative one depends on where one stands."""
    return f"{SQLITE}{home.absolute() / 'mlflow.db'}"


def store_uri(home: Path, environ: Mapping[str, str]) -> str:
    """The store that the user's environment names, else the one in our home."""
    return absolute(environ.get(URI_VARIABLE) or default_uri(home))


def absolute(uri: str) -> str:
    """The URI with a relative SQLite path resolved against the current folder.

    Raises:
        BadParameter: a file store, which MLflow no longer writes.
    """
    if uri.startswith(SQLITE) and not uri.startswith(f"{SQLITE}/"):
        return f"{SQLITE}{Path(uri.removeprefix(SQLITE)).absolute()}"
    if "://" not in uri or uri.startswith("file:"):
        raise BadParameter(
            f"{URI_VARIABLE}={uri!r} is a folder, which MLflow no longer takes as a store",
            cure="unset it to use the store in LEVERGATE_HOME, or give sqlite:////PATH or a URL",
        )
    return uri


def unreachable(uri: str) -> str:
    """Why a store cannot be reached from here, found out without mlflow; empty where it can."""
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        return f"{' and '.join(absent)} not installed here"
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or parts.hostname is None:
        return ""
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        with socket.create_connection((parts.hostname, port), CONNECT_TIMEOUT_S):
            return ""
    except (OSError, ValueError) as error:
        return f"no server answers at {uri} ({error})"


def artifact_root(home: Path, uri: str) -> str:
    """Where a local store's artifacts go; empty for a server, which knows itself."""
    return (home.absolute() / "mlartifacts").as_uri() if uri.startswith(SQLITE) else ""


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that talks to MLflow."""
    kept = {name: value for name, value in environ.items() if name not in REMOVED}
    paths = [str(ROOT), *filter(None, [environ.get("PYTHONPATH")])]
    return {**kept, **VARIABLES, "PYTHONPATH": os.pathsep.join(paths)}


def writer_tags(pid: int) -> dict[str, str]:
    """Who writes: enough to tell later whether that process still lives."""
    return {
        "levergate.host": socket.gethostname(),
        "levergate.boot_id": boot_id(),
        "levergate.pid": str(pid),
        "levergate.pid_started": f"{psutil.Process(pid).create_time():.2f}",
    }


def boot_id() -> str:
    """The id of this boot; empty where the system has none."""
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""


def is_alive(tags: Mapping[str, str]) -> bool:
    """Whether the process that wrote a run on this host still lives (a pid alone can be reused)."""
    if tags.get("levergate.boot_id", "") != boot_id():
        return False
    try:
        started = psutil.Process(int(tags.get("levergate.pid", "0"))).create_time()
    except (psutil.Error, ValueError):
        return False
    return f"{started:.2f}" == tags.get("levergate.pid_started")


@dataclass(frozen=True, slots=True)
class UiCommand:
    """The command line of MLflow's own server on our store, and its environment."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    url: str


def ui_command(
    home: Path, port: int = 5000, uri: str | None = None, host: str = "127.0.0.1"
) -> UiCommand:
    """The server for ``levergate ui``: one worker, no job runner (ready in 11 s instead of 27).

    Raises:
        BadParameter: the store is a server itself, which has its own page.
    """
    store = absolute(uri or default_uri(home))
    if store.startswith(("http://", "https://")):
        raise BadParameter(
            f"the MLflow store {store} is a server already", cure=f"open {store} in a browser"
        )
    root = artifact_root(home, store) or (home.absolute() / "mlartifacts").as_uri()
    argv = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store]
    argv += ["--artifacts-destination", root, "--host", host, "--port", str(port), "--workers", "1"]
    return UiCommand(tuple(argv), child_environment(os.environ), f"http://{host}:{port}")
