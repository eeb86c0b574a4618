from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from levers import catalog
from levers.base import Lever
from levers.errors import BadParameter, BrokenLever, UnknownName

LEVER = '''
"""A lever that a test wrote: it does nothing and helps nowhere."""

from levers.base import Settings
from levers.policy import GatingPolicy, ParityClass, Tolerance


class TestLever:
    name = "{name}"
    summary = "from a test"
    settings = Settings(("off", "on"))
    env = "LEVER_TEST"
    touches = ("site",)
    supersedes = ()
    composes_with = ()
    workloads = ("decode",)
    at_import = False

    def policy(self, facts):
        return GatingPolicy(primaries=("decode/tok_s/c*",))

    def unmet(self, facts, setting):
        return ()

    def environment(self, setting):
        return {{}}

    def enable(self, site, setting):
        return site.launch

    def disable(self, site, undo):
        site.launch = undo

    def witness(self, site):
        return {{}}

    def op_cases(self, setting, device):
        return ()


LEVER = TestLever()
'''

Add = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Add:
    """Adds a lever file, with replacements in its text, to the folder that the catalog reads."""
    place = tmp_path / "levers"
    place.mkdir()
    monkeypatch.setenv(catalog.FOLDER_VARIABLE, str(place))

    def add(name: str, *changes: tuple[str, str], text: str | None = None) -> Path:
        written = LEVER.format(name=name) if text is None else text
        for old, new in changes:
            assert old in written
            written = written.replace(old, new)
        file = place / f"{name}.py"
        file.write_text(written)
        return file

    return add


def entry(name: str) -> catalog.Entry:
    return next(one for one in catalog.listed() if one.name == name)


def test_the_built_in_levers_are_all_there_and_sound() -> None:
    names = [target.partition(":")[0].rpartition(".")[2] for target in catalog.BUILT_IN]
    found = {one.name: one for one in catalog.listed()}
    assert [found[name].broken for name in names] == [""] * len(names)
    assert all(catalog.get(name).name == name for name in names)


def test_an_unknown_name_is_answered_with_the_closest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'fa2_nsplits_cap'"):
        catalog.get("fa2_nsplit_cap")


def test_a_name_that_is_near_to_none_is_answered_with_all_of_them() -> None:
    with pytest.raises(UnknownName, match=r"known: attn_backend, .*tuned_gemm"):
        catalog.get("nope")


def test_a_file_in_the_lever_folder_is_a_lever(folder: Add) -> None:
    folder("mine")
    assert catalog.get("mine").summary == "from a test"
    assert isinstance(catalog.get("mine"), Lever)
    assert catalog.get("mine") is catalog.get("mine")


def test_a_file_that_does_not_import_is_listed_with_its_traceback_and_harms_nothing(
    folder: Add,
) -> None:
    folder("sound")
    folder("missing_import", text="import no_such_module_at_all\n")
    folder("wrong_syntax", text="def (:\n")
    folder("quitter", text="raise SystemExit(3)\n")
    folder("no_lever", text='"""Nothing here."""\n')
    assert entry("sound").broken == ""
    assert "no_such_module_at_all" in entry("missing_import").broken
    assert "Traceback" in entry("missing_import").broken
    assert "SyntaxError" in entry("wrong_syntax").broken
    assert "SystemExit" in entry("quitter").broken
    assert "LEVER" in entry("no_lever").broken
    assert entry("fa2_nsplits_cap").lever is not None


def test_a_broken_lever_that_is_asked_for_says_why(folder: Add) -> None:
    folder("missing_import", text="import no_such_module_at_all\n")
    with pytest.raises(BrokenLever, match=r"broken: ModuleNotFoundError: .*at_all'; ") as told:
        catalog.get("missing_import")
    assert "Traceback" not in str(told.value)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"LEVER_TEST"', '"MY_SWITCH"', "not named LEVER_"),
        ('("off", "on")', '("on",)', "lack 'off'"),
        ("def witness", "def evidence", "it lacks witness"),
        ('name = "mine"', 'name = "other"', "is called 'mine' and its lever 'other'"),
        ('name = "mine"', 'name = "Mine!"', "lower case"),
        ('touches = ("site",)', "touches = ()", "touches no site"),
        ('touches = ("site",)', 'touches = "site"', "touches is not a tuple"),
        ('workloads = ("decode",)', "workloads = ()", "names no workload"),
        ('"from a test"', '""', "summary"),
        ('"""A lever that a test wrote: it does nothing and helps nowhere."""', "", "no docstring"),
        ('primaries=("decode/tok_s/c*",)', "primaries=()", "at least one primary"),
        ('c*",)', 'c*",), smallest_gain=1', "smallest_gain = 1"),
        (
            'c*",)',
            'c*",), claims=ParityClass.TOLERATED, tolerance=Tolerance(0.01, " ")',
            "gives no reason",
        ),
        (
            'c*",)',
            'c*",), claims=ParityClass.TOLERATED, tolerance=Tolerance(1.0, "it is fp8")',
            "accepts anything",
        ),
        (
            'c*",)',
            'c*",), claims=ParityClass.TOLERATED, '
            'tolerance=Tolerance(0.05, "it is fp8", gradient_error=0.2)',
            "a tolerance of 0.2 accepts anything",
        ),
    ],
)
def test_what_is_no_acceptable_lever_is_broken_with_the_reason(
    folder: Add, old: str, new: str, complaint: str
) -> None:
    folder("mine", (old, new))
    assert entry("mine").lever is None
    assert complaint in entry("mine").broken


def test_two_levers_of_one_name_are_both_broken(folder: Add) -> None:
    file = folder("fa2_nsplits_cap")
    both = [one for one in catalog.listed() if one.name == "fa2_nsplits_cap"]
    assert [one.lever for one in both] == [None, None]
    assert all(str(file) in one.broken for one in both)
    with pytest.raises(BrokenLever, match="several levers"):
        catalog.get("fa2_nsplits_cap")


def test_a_lever_folder_that_cannot_be_read_is_an_error_and_no_empty_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(catalog.FOLDER_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(BadParameter, match="nowhere"):
        catalog.listed()


def test_files_that_begin_with_an_underscore_are_no_levers(folder: Add) -> None:
    folder("_shared", text="raise ValueError\n")
    assert "_shared" not in [one.name for one in catalog.listed()]


def test_a_third_partys_lever_comes_in_through_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_levers.py").write_text(LEVER.format(name="theirs"))
    info = tmp_path / "their_levers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-levers\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{catalog.GROUP}]\ntheirs = their_levers:LEVER\nbroken_one = their_levers:NOTHING\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    assert catalog.get("theirs").summary == "from a test"
    assert "their-levers" in entry("theirs").origin
    assert "NOTHING" in entry("broken_one").broken


def test_the_catalog_imports_neither_torch_nor_pydantic() -> None:
    seen = (
        "import sys; from levers import catalog; catalog.listed(); "
        "print([m for m in ('torch', 'pydantic', 'numpy', 'mlflow') if m in sys.modules])"
    )
    environment = {**os.environ, catalog.FOLDER_VARIABLE: ""}
    result = subprocess.run(
        [sys.executable, "-c", seen], capture_output=True, text=True, check=True, env=environment
    )
    assert result.stdout.strip() == "[]"
