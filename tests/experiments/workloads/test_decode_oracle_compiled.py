"""Compiled steps of the oracle transformers that are kept for later processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from experiments.workloads.decode import oracle_compiled
from experiments.workloads.decode.oracle_compiled import CompiledForward
from experiments.workloads.decode.oracle_model import transformers_module
from experiments.workloads.decode.oracle_static import StaticDecoder
from experiments.workloads.decode.oracle_transformers import TransformersOracle, compiler_text
from levers.errors import LevergateError

PROMPTS = ((3, 5, 7, 9), (2, 4, 6))


@pytest.fixture(scope="module")
def model() -> Any:
    package = transformers_module()
    config = package.AutoConfig.for_model(
        "qwen3", num_hidden_layers=1, hidden_size=32, intermediate_size=48,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, vocab_size=64,
    )  # fmt: skip
    torch.manual_seed(1)
    found = package.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return found.eval().requires_grad_(False)


def decoder(model: Any, forward: Any) -> StaticDecoder:
    found = StaticDecoder(model, 2, 12, forward)
    found.prefill(PROMPTS)
    return found


def tokens(found: StaticDecoder) -> list[list[int]]:
    return [found.step().flatten().tolist() for _ in range(5)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(oracle_compiled.VARIABLE, str(tmp_path))
    return tmp_path / oracle_compiled.FOLDER


@pytest.mark.filterwarnings("ignore")
def test_what_one_process_compiled_is_loaded_and_decodes_what_the_model_does(
    model: Any, folder: Path
) -> None:
    eager = tokens(decoder(model, model.forward))
    first = CompiledForward(model, "2 slots")
    assert tokens(decoder(model, first)) == eager
    assert first.how == "compiled and kept"
    again = CompiledForward(model, "2 slots")
    loaded = decoder(model, again)
    assert tokens(loaded) == eager
    assert again.how == "loaded"
    assert loaded.difference() < 1e-4
    assert tokens(loaded) == eager
    with torch.no_grad():
        model.lm_head.weight.neg_()  # weights belong to the process and not to the form
        try:
            assert tokens(decoder(model, again)) == tokens(decoder(model, model.forward)) != eager
        finally:
            model.lm_head.weight.neg_()
    assert len(list(folder.iterdir())) == 1


def test_each_batch_and_model_has_a_form_of_its_own(model: Any, folder: Path) -> None:
    paths = {CompiledForward(model, what)._path() for what in ("2 slots", "3 slots")}
    assert len(paths) == 2
    assert {path.parent for path in paths if path is not None} == {folder}


def test_a_form_of_an_older_text_of_our_own_is_not_loaded(
    model: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = CompiledForward(model, "2 slots")
    before = form._path()
    assert form._path() == before
    read = Path.read_bytes
    for name in oracle_compiled.MADE_BY:

        def edited(path: Path, name: str = name) -> bytes:
            return read(path) + (b"# changed" if path.name == name else b"")

        with monkeypatch.context() as patched:
            patched.setattr(Path, "read_bytes", edited)
            assert form._path() != before, name
    assert form._path() == before


def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler makes a graph and leaves the function as it is."""

    def plain() -> Any:
        counters["stats"]["unique_graphs"] += 1
        return oracle_compiled._logits

    monkeypatch.setattr(oracle_compiled, "_plain", plain)


def test_a_form_that_has_no_place_is_compiled_as_ever_and_that_is_said(
    model: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(monkeypatch)
    monkeypatch.delenv(oracle_compiled.VARIABLE)
    nowhere = CompiledForward(model, "2 slots")
    decoder(model, nowhere).step()
    assert nowhere.how == "compiled (not kept: TORCHINDUCTOR_CACHE_DIR is not set)"
    assert not folder.exists()


@pytest.mark.filterwarnings("ignore")
def test_a_damaged_form_is_made_anew(model: Any, folder: Path) -> None:
    path = CompiledForward(model, "2 slots")._path()
    assert path is not None
    folder.mkdir()
    path.write_bytes(b"no form")
    for how in ("compiled and kept", "loaded"):
        form = CompiledForward(model, "2 slots")
        assert tokens(decoder(model, form)) == tokens(decoder(model, model.forward))
        assert form.how == how
    assert [one.name for one in folder.iterdir()] == [path.name]


def test_a_compiler_that_is_switched_off_leaves_an_eager_step_and_no_other_word(
    model: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    form = CompiledForward(model, "2 slots")
    assert tokens(decoder(model, form)) == tokens(decoder(model, model.forward))
    assert form.how == ""


def test_a_form_that_could_not_be_kept_is_not_compiled_twice_again(
    model: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(monkeypatch)
    tries: list[str] = []

    def refuse(*_: object) -> Any:
        tries.append("tried")
        raise RuntimeError("this version keeps nothing\nand says much")

    monkeypatch.setattr(oracle_compiled, "_ahead", refuse)
    for _ in range(2):
        refused = CompiledForward(model, "3 slots")
        decoder(model, refused).step()
        assert refused.how == "compiled (not kept: RuntimeError: this version keeps nothing)"
    assert tries == ["tried"]
    assert len(list(folder.glob("*.refused"))) == 1


def wrapped(inner: BaseException) -> RuntimeError:
    """As the compiler raises what its own code generation raised."""
    found = RuntimeError("backend failed")
    found.__cause__ = inner
    return found


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        EOFError("cut"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        wrapped(OSError(28, "No space left on device")),
        RuntimeError("InductorError: OSError: [Errno 28] No space left on device"),
    ],
    ids=["disk", "cut", "memory", "wrapped", "retold"],
)
def test_a_form_that_a_passing_cause_kept_from_its_place_is_tried_again(
    model: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    planted(monkeypatch)
    tries: list[str] = []

    def fail(*_: object) -> Any:
        tries.append("tried")
        raise error

    monkeypatch.setattr(oracle_compiled, "_ahead", fail)
    for _ in range(2):
        form = CompiledForward(model, "3 slots")
        decoder(model, form).step()
        assert form.how.startswith(f"compiled (not kept: {type(error).__name__}: ")
    assert len(tries) == 2
    assert not list(folder.glob("*"))


def test_a_form_whose_writing_was_cut_leaves_nothing_and_is_written_the_next_time(
    model: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = [True]

    class Form:
        def __call__(self, *given: Any, **named: Any) -> Any:
            counters["stats"]["unique_graphs"] += 1
            return oracle_compiled._logits(*given, **named)

        def save_compiled_function(self, path: str) -> None:
            Path(path).write_bytes(b"half of it")
            if full.pop():
                full.append(False)
                raise OSError(28, "No space left on device")

        def disable_guard_check(self) -> None:
            """There is none."""

    monkeypatch.setattr(oracle_compiled, "_ahead", lambda *_: Form())
    found = []
    for _ in range(2):
        form = CompiledForward(model, "2 slots")
        decoder(model, form).step()
        found.append((form.how, len(list(folder.glob("*")))))
    said = "compiled (not kept: OSError: [Errno 28] No space left on device)"
    assert found == [(said, 0), ("compiled and kept", 1)]


def test_what_was_compiled_is_used_although_it_cannot_be_written(
    model: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Form:
        def __call__(self, *given: Any, **named: Any) -> Any:
            counters["stats"]["unique_graphs"] += 1
            return oracle_compiled._logits(*given, **named)

        def save_compiled_function(self, path: str) -> None:
            raise TypeError(f"cannot pickle into {Path(path).parent.name}")

        def disable_guard_check(self) -> None:
            """There is none."""

    monkeypatch.setattr(oracle_compiled, "_ahead", lambda *_: Form())
    monkeypatch.setattr(oracle_compiled, "_plain", None)
    form = CompiledForward(model, "2 slots")
    assert tokens(decoder(model, form)) == tokens(decoder(model, model.forward))
    assert form.how == "compiled (not kept: TypeError: cannot pickle into whole)"
    assert folder.is_dir()


def test_a_step_that_computes_something_else_is_an_error(model: Any) -> None:
    def other(**named: Any) -> Any:
        named["input_ids"] = named["input_ids"] + 1
        return model(**named)

    class Oracle(TransformersOracle):
        def __init__(self) -> None:
            form = CompiledForward(model, "2 slots")
            form.how = "loaded"
            self._compiled = {2: form}

    Oracle()._check(2, decoder(model, model.forward))
    with pytest.raises(LevergateError, match=r"of 2 slots \(loaded\) differs by"):
        Oracle()._check(2, decoder(model, other))


def test_the_ways_of_all_forms_are_summed_up() -> None:
    assert compiler_text(["loaded", "compiled and kept", "loaded"]) == (
        "2 loaded, 1 compiled and kept"
    )
    assert compiler_text([]) == "not used"
