from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from benchmarks import split_table
from benchmarks.split_table_timing import Shape, plan_of
from levers.kernels.split_kv_config import CANDIDATES
from levers.kernels.tuned_splits_table import TunedRow


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("table") / "table.json"
    split_table.main(["--rehearse", "--out", str(out)])
    return out


def test_a_rehearsal_measures_every_shape_and_count(table: Path) -> None:
    report = json.loads(table.read_text())
    (found,) = report["tables"]
    assert found["backend"] == "torch"
    assert [(row["tokens"], row["batch"]) for row in found["rows"]] == [
        (256, 1),
        (256, 2),
        (512, 1),
        (512, 2),
    ]
    for row in found["rows"]:
        assert set(row["us"]) == {"0", "1", "2"}
        assert all(us > 0 for us in row["us"].values())


def test_a_later_call_goes_on_from_what_is_there(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = table.read_text()
    split_table.main(["--rehearse", "--out", str(table)])
    assert table.read_text() == before
    assert "best" not in capsys.readouterr().out


def test_a_file_of_another_device_is_not_written_over(table: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(table.read_text().replace('"device": "cpu"', '"device": "NVIDIA L4"'))
    with pytest.raises(SystemExit, match="another device"):
        split_table.main(["--rehearse", "--out", str(other)])


def test_the_module_that_is_written_holds_the_rows(table: Path, tmp_path: Path) -> None:
    module = tmp_path / "tables.py"
    split_table.main(["--write", str(table), "--module", str(module)])
    (written,) = runpy.run_path(str(module))["TABLES"]
    rows = json.loads(table.read_text())["tables"][0]["rows"]
    assert len(written.rows) == len(rows)
    assert all(isinstance(row, TunedRow) for row in written.rows)
    for row in written.rows:
        assert row.us <= 1.01 * row.least_us
    assert (written.device, written.backend, written.kv_heads) == ("cpu", "torch", 8)
    assert max(len(text) for text in module.read_text().splitlines()) <= 100


def test_a_backend_that_is_not_installed_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    split_table.main(["--backend", "fa2", "fa3", "--out", str(tmp_path / "none.json")])
    assert capsys.readouterr().out.count("left out") == 2


def test_no_more_pieces_are_tried_than_a_backend_can_use() -> None:
    asked = [0, 1, 4, 5, 8, 9]
    assert split_table.counts_of(Shape(32, 512, 1), "fa2", asked) == [0, 1, 4]
    assert split_table.counts_of(Shape(32, 512, 1), "fa3", asked) == [0, 1, 4, 5, 8]


def test_the_libraries_are_left_their_own_rule_and_ours_is_the_heuristic() -> None:
    shape = Shape(32, 896, 1)
    assert plan_of("fa2", shape, 0, 48).num_splits == 0
    assert plan_of("fa3", shape, 0, 48).num_splits == 0
    assert plan_of("triton", shape, 0, 48).num_splits == 7
    assert plan_of("triton", shape, 3, 48).num_splits == 3


def test_the_layouts_of_our_kernel_are_compared_at_several_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def timed(backend: str, shape: Shape, counts: list[int], *rest: object) -> dict[int, float]:
        assert backend == "triton"
        assert counts == [2]
        return dict.fromkeys(counts, 5.0 if rest[-1] is CANDIDATES[1] else 10.0)

    monkeypatch.setattr("benchmarks.split_table_timing.microseconds", timed)
    out = tmp_path / "layouts.json"
    split_table.main(["--rehearse", "--layouts", "--out", str(out)])
    found = json.loads(out.read_text())["layouts"]
    assert [one["name"] for one in found] == [one.name for one in CANDIDATES]
    assert f"ours {CANDIDATES[1].name} 5.00 us" in capsys.readouterr().out
