"""What must hold before any test module is imported: one thread, and Triton's interpreter.

Triton reads ``TRITON_INTERPRET`` when it is imported; without a CUDA device its kernels run in the
interpreter. More threads than one only make two-core machines slower here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

ROOT = Path(__file__).resolve().parents[1]

MAKE_STORE = """
import pathlib, sys
from experiments.tracking import child as tracking_child
tracking_child._make(pathlib.Path(sys.argv[1]))
"""


@pytest.fixture(scope="session")
def _made_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from experiments.tracking import store as tracking_store

    store = tmp_path_factory.mktemp("made") / "mlflow.db"
    subprocess.run(
        [sys.executable, "-c", MAKE_STORE, str(store)],
        env=tracking_store.child_environment(os.environ),
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    return store


@pytest.fixture
def with_store(_made_store: Path) -> Callable[[Path], None]:
    """Puts an empty MLflow store into a home: making one takes ten seconds, copying none."""

    def put(home: Path) -> None:
        shutil.copy(_made_store, home / "mlflow.db")

    return put
