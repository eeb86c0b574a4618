from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from levers import catalog
from levers.errors import BrokenLever
from levers.source import source_digest, source_files

SOURCE = Path(__file__).parent / "test_catalog.py"
LEVER = SOURCE.read_text().split("LEVER = '''")[1].split("'''")[0].format(name="mine")


def write(folder: Path, text: str) -> None:
    (folder / "mine.py").write_text(text)
    sys.modules.pop("levergate_folder_mine", None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(catalog.FOLDER_VARIABLE, str(tmp_path))
    write(tmp_path, LEVER)
    return tmp_path


def test_a_change_of_the_lever_file_changes_the_digest(folder: Path) -> None:
    before = source_digest(catalog.get("mine"))
    write(folder, LEVER + "\nCAP = 3\n")
    assert source_digest(catalog.get("mine")) != before


def test_kernel_modules_imported_inside_a_hook_belong_to_the_lever(folder: Path) -> None:
    hook = "from levers.kernels.segment_sum import broadcast\n        return site.launch"
    write(folder, LEVER.replace("return site.launch", hook))
    names = [name for name, _ in source_files(catalog.get("mine"))]
    assert "levers.kernels.segment_sum" in names
    assert "levers.base" not in names


def test_each_built_in_lever_has_its_kernels_in_its_digest() -> None:
    for entry in catalog.listed():
        assert entry.lever is not None
        files = dict(source_files(entry.lever))
        text = "".join(path.read_text() for path in files.values())
        imported = set(re.findall(r"^\s*from (levers\.kernels\.\w+) import", text, re.MULTILINE))
        assert imported <= set(files), entry.name


def test_relative_imports_of_the_levers_own_package_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "their_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "kernel.py").write_text("from . import deeper\n\n\ndef run(): ...\n")
    (package / "deeper.py").write_text("import no_such_module_at_all\n")
    hook = "from .kernel import run\n        return site.launch"
    (package / "lever.py").write_text(LEVER.replace("return site.launch", hook))
    monkeypatch.syspath_prepend(tmp_path)
    lever = importlib.import_module("their_package.lever").LEVER
    names = [name for name, _ in source_files(lever)]
    assert names == [f"their_package{part}" for part in ("", ".deeper", ".kernel", ".lever")]


@pytest.mark.parametrize("text", ["from theirs1.factor import F", "import theirs2.factor"])
def test_a_module_in_a_folder_without_an_init_belongs_to_the_lever(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    package = text.split()[1].partition(".")[0]
    place = folder / "lib" / package
    place.mkdir(parents=True)
    (place / "factor.py").write_text("F = 1.0\n")
    monkeypatch.syspath_prepend(str(place.parent))
    write(folder, LEVER + f"\n{text}\n")
    before = source_digest(catalog.get("mine"))
    (place / "factor.py").write_text("F = 0.0\n")
    assert source_digest(catalog.get("mine")) != before
    (place / "__init__.py").write_text("F = 2.0\n")  # executed before the module
    importlib.invalidate_caches()
    for name in (f"{package}.factor", package):
        sys.modules.pop(name, None)
    names = [name for name, _ in source_files(catalog.get("mine"))]
    assert {package, f"{package}.factor"} <= set(names)


def test_a_lever_without_a_file_has_no_digest(folder: Path) -> None:
    lever = catalog.get("mine")
    namespace = {"__name__": "builtins"}
    made = type("Made", (type(lever),), namespace)()
    made.__class__.__module__ = "builtins"
    with pytest.raises(BrokenLever, match="no file"):
        source_digest(made)


def test_the_digest_is_the_same_in_another_process() -> None:
    code = (
        "from levers import catalog; from levers.source import source_digest; import sys; "
        "print(source_digest(catalog.get('fa2_nsplits_cap')), 'torch' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == [source_digest(catalog.get("fa2_nsplits_cap")), "False"]


def test_the_base_of_the_step_levers_belongs_to_their_digest() -> None:
    for lever, bases in (
        ("fused_modulate", {"levers.step_lever", "levers.site_lever"}),
        ("fused_mlp_hidden", {"levers.step_lever", "levers.site_lever"}),
        ("compile_slat_flow", {"levers.step_lever", "levers.site_lever", "levers.compiler"}),
    ):
        names = {name for name, _ in source_files(catalog.get(lever))}
        assert bases <= names, lever
        assert "levers.base" not in names
