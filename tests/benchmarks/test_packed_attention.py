"""The benchmark of packed attention: schedules by counting, orders, a small run on a CPU."""

from __future__ import annotations

import json
import types
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks import packed_attention as bench
from experiments.workloads.flow.lengths import MEASURED_TOKENS


def test_a_schedule_ends_with_its_last_tile() -> None:
    assert bench.schedule([3.0, 3.0, 1.0, 1.0, 1.0, 3.0], 3) == 6.0
    assert bench.schedule([3.0, 3.0, 3.0, 1.0, 1.0, 1.0], 3) == 4.0


def test_the_longest_first_is_worth_most_where_a_tiles_work_differs_most() -> None:
    """The shares that the lever states of the 1.3 B step's batch."""
    drawn, first, _ = bench.orders(MEASURED_TOKENS).values()
    ends = {
        (kind, way): [
            bench.schedule(bench.tiles_of(bench.attentions(one, 2056, 12, 128)[kind], way))
            for one in (drawn, first)
        ]
        for kind in ("self", "cross")
        for way in ("forward", "backward")
    }
    saved = {name: 1 - after / before for name, (before, after) in ends.items()}
    assert saved["self", "forward"] == pytest.approx(0.023, abs=0.003)
    assert saved["self", "backward"] == pytest.approx(0.023, abs=0.003)
    assert saved["cross", "backward"] == pytest.approx(0.066, abs=0.006)
    assert saved["cross", "forward"] == 0.0


def test_flop_of_packed_samples_are_those_of_each() -> None:
    one = bench.Attention((2, 3), (5, 7), heads=4, head_dim=8)
    assert one.flop == 4 * (2 * 5 + 3 * 7) * 4 * 8


def test_it_writes_a_line_for_each_order_each_way(tmp_path: Path) -> None:
    bench.run("cpu", tmp_path / "found.json")
    lines = json.loads((tmp_path / "found.json").read_text())["lines"]
    timed = [one for one in lines if one["part"] == "order"]
    assert {(one["case"], one["what"]) for one in timed} == {
        (f"{kind} {way}", order)
        for kind in ("self", "cross")
        for way in ("forward", "backward")
        for order in ("as drawn", "longest first", "shortest first")
    }
    assert not any("failed" in one for one in lines)


@dataclass(frozen=True)
class Choice:
    m_block_size: int = 80
    n_block_size: int = 128
    dQ_swapAB: bool = True


def test_another_tile_is_chosen_inside_and_the_packages_own_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interface = types.ModuleType("interface")
    interface.choose = lambda: Choice()  # type: ignore[attr-defined]
    cute = types.ModuleType("flash_attn.cute")
    cute.interface = interface  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "flash_attn", types.ModuleType("flash_attn"))
    monkeypatch.setitem(__import__("sys").modules, "flash_attn.cute", cute)
    with bench.other_tile("choose", (64, 96)):
        assert interface.choose() == Choice(64, 96, dQ_swapAB=False)
    assert interface.choose() == Choice()


def test_tiles_on_a_cpu_are_refused_where_they_are_asked_for_and_said_to_be_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OUT", raising=False)
    for only in (["tiles"], ["order", "tiles"]):
        with pytest.raises(SystemExit) as stopped:
            bench.main(["--device", "cpu", "--only", *only])
        assert stopped.value.code == 2
        assert "tiles need CUDA" in capsys.readouterr().err
    monkeypatch.setattr(bench, "order", lambda bench, *_: bench.report.add("order", "", "", us=1.0))
    assert bench.main(["--device", "cpu"]) == 0
    assert "tiles are left out: they need CUDA" in capsys.readouterr().out


def test_one_attention_that_fails_costs_the_other_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OUT", raising=False)

    def calls(_: object, one: bench.Attention) -> tuple[bench.Call, bench.Call]:
        if one.queries == one.keys or broken:
            raise AssertionError("no kernel")
        return (lambda: None), (lambda: None)

    broken: list[int] = []
    monkeypatch.setattr(bench, "calls", calls)
    assert bench.main(["--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "failed=AssertionError: no kernel" in said
    assert "cross backward" in said
    broken.append(1)
    assert bench.main(["--device", "cpu"]) == 1
    assert "order: every line failed" in capsys.readouterr().err
