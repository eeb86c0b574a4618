"""A process says which weights it loaded, and refuses others than its run began with."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.failure_kinds import kind_of
from experiments.workloads.base import DIGESTS_VARIABLE, DeviceFacts
from experiments.workloads.decode import loaded
from experiments.workloads.decode.folder import SHIPPED_FOLDER
from experiments.workloads.decode.opening import open_implementation
from experiments.workloads.decode.workload import DECODE
from levers.errors import InputsChanged

CPU = DeviceFacts("cpu", "some CPU", 2**34)
SHORT = {
    "prompt_tokens": "96",
    "output_tokens": "24",
    "rounds": "2",
    "round_steps": "12",
    "ttft_repeats": "20",
    "concurrency": "1",
}
CHANGED = r"the weights of .*trained have changed since the run began \(.* -> .*\); .*start a new"


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    folder = tmp_path / "trained"
    shutil.copytree(SHIPPED_FOLDER, folder)
    return folder


def exchange(folder: Path) -> None:
    """Other weights of the same shapes; done twice, the first ones again."""
    path = folder / "model.safetensors"
    values = bytearray(path.read_bytes())
    values[-1] ^= 1
    path.write_bytes(bytes(values))


def test_a_sample_says_what_was_loaded(trained: Path) -> None:
    parameters = DECODE.resolve({**SHORT, "model": str(trained)}, CPU)
    session = open_implementation(parameters, "cpu", 1, "engine")
    session.warm_up()
    assert session.measure().facts["weights_loaded"] == parameters["model_digest"]
    assert "weights_loaded" not in loaded.loaded_fact(loaded.confirm({"model": "random-0.6b"}))


@pytest.mark.parametrize("implementation", ["engine", "oracle:sdpa", "oracle:transformers"])
def test_a_process_does_not_work_with_other_weights_than_its_run_began_with(
    trained: Path, implementation: str
) -> None:
    parameters = DECODE.resolve({**SHORT, "model": str(trained)}, CPU)
    exchange(trained)
    with pytest.raises(InputsChanged, match=CHANGED) as caught:
        open_implementation(parameters, "cpu", 1, implementation).warm_up()
    assert kind_of(caught.value) == "inputs-changed"


def test_weights_that_changed_while_a_process_read_them_are_found(trained: Path) -> None:
    parameters = DECODE.resolve({**SHORT, "model": str(trained)}, CPU)
    session = open_implementation(parameters, "cpu", 1, "engine")
    exchange(trained)
    with pytest.raises(InputsChanged, match=CHANGED):
        session.outputs({"want": "tokens", "prompts": 1})
    shutil.rmtree(trained)
    with pytest.raises(InputsChanged, match="went away while the run went on"):
        loaded.confirm(parameters)


@pytest.fixture
def reads(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[str, bool]]:
    """The digest of the folder, and whether its files were read for it."""
    monkeypatch.setenv(DIGESTS_VARIABLE, str(tmp_path / "digests"))
    read: list[str] = []
    whole = loaded.model_digest
    monkeypatch.setattr(loaded, "model_digest", lambda model: read.append(model) or whole(model))
    monkeypatch.setattr(loaded, "SETTLED_S", -60.0)

    def ask() -> tuple[str, bool]:
        read.clear()
        return loaded.loaded_digest(str(trained)), bool(read)

    return ask


def test_the_digest_is_found_again_until_a_file_changes(
    trained: Path, tmp_path: Path, reads: Callable[..., tuple[str, bool]]
) -> None:
    first, read = reads()
    assert read
    assert reads() == (first, False)
    exchange(trained)
    second, read = reads()
    assert read
    assert second != first
    exchange(trained)
    assert reads() == (first, True)
    path = trained / "model.safetensors"
    times = path.stat()
    exchange(trained)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # as a copy that keeps times does
    assert reads() == (second, True)
    (trained / "prompts.txt").unlink()
    assert reads() == (second, True)
    for kept in (tmp_path / "digests").iterdir():
        kept.write_text("cut")
    assert reads() == (second, True)
    assert reads() == (second, False)
    config = json.loads((trained / "config.json").read_text())
    (trained / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 320}))
    third, read = reads()
    assert read
    assert third not in (first, second)


def test_of_files_that_have_just_been_written_nothing_is_kept(
    reads: Callable[..., tuple[str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded, "SETTLED_S", 60.0)
    assert reads()[1]
    assert reads()[1]


def test_a_folder_that_cannot_be_written_costs_no_more_than_the_reading(
    tmp_path: Path, reads: Callable[..., tuple[str, bool]]
) -> None:
    (tmp_path / "digests").write_text("a file")
    assert reads()[1]
    assert reads()[1]
