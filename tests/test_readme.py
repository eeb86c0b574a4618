"""What the README claims, run: its commands, its example lever, its verdict and its figures."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from rich.console import Console

import cli
from benchmarks import results_table
from experiments import bundles, exit_codes, render
from experiments.render_terminal import print_verdict
from experiments.replay import decide_again
from experiments.view.verdict import view
from experiments.workloads import catalog as workloads
from levers import catalog as levers

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = {
    path: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted(ROOT.glob("docs/results/*/*.json"))
}
BUNDLES = [path for path, read in RESULTS.items() if read.get("format") == bundles.FORMAT]
TIMES = ROOT / "docs/results/cpu/readme_command.json"
SHOWN = ROOT / "docs/results/cpu/fa2_nsplits_cap-decode.json"
GROUP = typer.main.get_command(cli.application())

SMALL = (
    *("--oracle", "none", "--pairs", "6", "--yes", "--json"),
    *("--set", "concurrency=1", "--set", "prompt_tokens=384", "--set", "output_tokens=8"),
    *("--set", "rounds=4", "--set", "ttft_repeats=20"),
)
"""Makes the run of the example lever a matter of seconds."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def lines(block: str) -> list[str]:
    return [line for line in block.splitlines() if line.strip()]


SHELL = [line for block in blocks("bash") for line in lines(block)]
LEVERGATE = [line for line in SHELL if line.startswith("levergate ")]
TRIED = [line for line in lines(blocks("bash")[1]) if line in LEVERGATE]
"""The block of commands that work on the evidence that is shipped."""


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A fresh home without an MLflow server, as on a machine that has none."""
    monkeypatch.setenv("LEVERGATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LEVERGATE_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def test_every_line_of_a_shell_block_is_of_a_kind_that_is_tested() -> None:
    others = [line for line in SHELL if line not in LEVERGATE]
    assert others == ["make ab", "make test", f"export {levers.FOLDER_VARIABLE}=levers-of-mine"]


def test_the_make_targets_exist_and_ab_runs_the_command_that_is_named() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^test: ", makefile, re.MULTILINE)
    recipe = re.search(r"^ab: setup\n\t\$\(BIN\)/(.*)$", makefile, re.MULTILINE)
    assert recipe is not None
    assert f"`{recipe[1]}`" in README


@pytest.mark.parametrize("line", LEVERGATE)
def test_each_command_parses(line: str) -> None:
    words = shlex.split(line)[1:]
    group = GROUP
    while hasattr(group, "commands"):
        group = group.commands[words.pop(0)]
    group.make_context("levergate", words)


def test_every_command_of_the_program_is_shown() -> None:
    assert set(GROUP.commands) == {shlex.split(line)[1] for line in LEVERGATE}


def test_every_command_but_the_server_has_json() -> None:
    lacking = {
        name
        for name, command in GROUP.commands.items()
        if not hasattr(command, "commands")
        and "--json" not in {word for option in command.params for word in option.opts}
    }
    assert lacking == {"ui"}


def test_what_can_be_tried_at_once_works_in_this_order(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    (home / "docs").symlink_to(ROOT / "docs")
    (home / "tests").symlink_to(ROOT / "tests")
    for line in TRIED:
        assert cli.main(shlex.split(line)[1:]) == 0, line
        assert capsys.readouterr().out, line
    assert (home / "report.html").read_text().startswith("<!doctype html>")
    assert bundles.read_bundle(home / "bundle.json") == bundles.read_bundle(SHOWN)


def test_the_table_of_exit_codes_is_that_of_the_program() -> None:
    rows = re.findall(r"^\| ([\w-]+) \| [^|]+ \| (\d+) \| (\d+) \|$", README, re.MULTILINE)
    assert {outcome for outcome, *_ in rows} == set(exit_codes.OUTCOMES)
    for outcome, plain, detailed in rows:
        assert int(plain) == exit_codes.exit_code(outcome)
        assert int(detailed) == exit_codes.exit_code(outcome, detailed=True)
    others = {code.value for code in exit_codes.Exit} - {int(n) for row in rows for n in row[1:]}
    (said,) = re.findall(r"^Other codes: (.*?)\. ", README, re.MULTILINE)
    assert {int(number) for number in re.findall(r"\b\d+\b", said)} == others


def test_the_verdict_is_printed_as_the_stored_run_prints_it() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=100, color_system=None, highlight=False)
    print_verdict(console, view(bundles.read_bundle(SHOWN)))
    printed = "\n".join(line.rstrip() for line in stream.getvalue().splitlines())
    (block,) = blocks("text")
    parts = block.rstrip().split("\n...\n")
    places = [printed.find(part) for part in parts]
    assert -1 not in places
    assert places == sorted(places)
    assert printed.endswith(parts[-1])


def without_marks(text: str) -> str:
    """The text without what stands beside a verdict and changes with time and place."""
    kept = "\n".join(line for line in text.splitlines() if not line.startswith("> "))
    return re.sub(r"\n{2,}", "\n\n", kept)


@pytest.mark.parametrize("path", BUNDLES, ids=lambda path: path.stem)
def test_the_pull_request_text_beside_a_bundle_is_what_its_record_gives(path: Path) -> None:
    text = path.with_suffix(".md").read_text(encoding="utf-8")
    again = render.markdown(view(bundles.read_bundle(path)))
    assert without_marks(text) == without_marks(again)


@pytest.mark.parametrize("path", BUNDLES, ids=lambda path: path.stem)
def test_a_shipped_record_decides_again_as_it_was_decided(path: Path) -> None:
    record = bundles.read_bundle(path)
    assert decide_again(record) == record.decision


def test_the_table_of_results_is_what_the_command_makes_of_the_bundles() -> None:
    assert results_table.found(ROOT) == BUNDLES
    rows = results_table.table(ROOT)
    assert len(rows) == len(results_table.HEAD) + len(BUNDLES)
    assert results_table.put(README, rows) == README, (
        "python -m benchmarks.results_table --write puts the rows of all bundles into it"
    )
    stacked = results_table.stack_table(ROOT)
    assert len(stacked) > len(results_table.STACK_HEAD)
    assert results_table.put(README, stacked, results_table.STACK_HEAD[0]) == README


def test_the_seconds_of_the_command_are_those_of_the_runs_on_record() -> None:
    runs = RESULTS[TIMES]["runs"]
    assert [one["outcome"] for one in runs] == ["default-ON"] * 10
    limit = RESULTS[TIMES]["limit_s"]
    seconds = sorted(round(one["seconds"]) for one in runs)
    within, over = [s for s in seconds if s <= limit], [s for s in seconds if s > limit]
    assert len(within) == 8
    said = f"eight within {limit:.0f} s ({within[0]} to {within[-1]} s), two longer "
    assert f"ten of ten default-ON: {said}({over[0]} and {over[1]} s)" in README


def test_every_built_in_lever_and_workload_is_named() -> None:
    (line,) = [line for line in README.splitlines() if line.startswith("Workloads: ")]
    own = {one.removesuffix(":LEVER").rpartition(".")[2] for one in levers.BUILT_IN}
    named = re.findall(r"`(\w+)`", line)
    assert sorted(named) == sorted({*own, *workloads.known()})


def test_every_benchmark_that_is_named_explains_itself() -> None:
    named = set(re.findall(r"`python -m (benchmarks\.\w+)`", README))
    assert named == {"benchmarks.several_gpus"}
    for module in named:
        done = subprocess.run(
            [sys.executable, "-m", module, "--help"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.startswith("usage: ")


def test_it_stays_short_beside_the_rows_of_results() -> None:
    stacked = results_table.stack_table(ROOT)
    assert len(README.splitlines()) - len(BUNDLES) - len(stacked) <= 200


def test_every_link_to_a_file_leads_to_one() -> None:
    targets = [t for t in re.findall(r"\]\(([^)]+)\)", README) if "://" not in t]
    assert len(targets) > 10
    assert [target for target in targets if not (ROOT / target).is_file()] == []


def test_the_entry_points_are_those_that_are_read() -> None:
    (block,) = blocks("toml")
    (group,) = tomllib.loads(block)["project"]["entry-points"]
    assert group == levers.GROUP
    assert f"`{workloads.GROUP}`" in README
    assert f"`{workloads.VARIABLE}=name=module:ATTRIBUTE`" in README


@pytest.mark.slow
def test_the_example_lever_as_printed_is_measured_by_the_command_beside_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (source,) = blocks("python")
    (home / "levers-of-mine").mkdir()
    (home / "levers-of-mine/one_split.py").write_text(source, encoding="utf-8")
    monkeypatch.setenv(levers.FOLDER_VARIABLE, str(home / "levers-of-mine"))
    (command,) = [line for line in LEVERGATE if " one_split " in line]
    code = cli.main([*shlex.split(command)[1:], *SMALL])
    answer = json.loads(capsys.readouterr().out)
    assert code == exit_codes.exit_code(answer["outcome"])
    assert answer["outcome"] in ("default-ON", "gated-OFF", "terminal", "inconclusive")
    record = answer["record"]
    assert not record["failures"]
    checks = {check["name"]: check for check in record["parity"]["checks"]}
    for name in ("op", "determinism", "tokens", "async", "smoke", "rollback"):
        assert checks[name]["status"] == "passed"
    plans = {one["arm"]: one["plans"]["decode/tok_s/c1"] for one in record["witnesses"]}
    assert plans["cand"] == "num_splits=1"
    assert plans["ref"] != plans["cand"]
