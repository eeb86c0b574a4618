"""The README's table, made from bundles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import results_table
from experiments import bundles
from experiments.spec import LeverSetting

ROOT = Path(__file__).resolve().parents[2]
FLOW = ROOT / "docs/results/h200/segment_sum_broadcast-slat_flow-xl.json"


def test_the_work_is_told_by_what_is_not_the_workloads_own() -> None:
    record = bundles.read_bundle(FLOW)
    assert results_table.measured(record) == "slat_flow size=xl on NVIDIA H200"
    parameters = {**record.spec.parameters, "frozen": 24, "bs": 2, "steps": 3}
    stack = (LeverSetting(lever="tuned_gemm", setting="on"),)
    changed = record.spec.model_copy(update={"parameters": parameters, "stack": stack})
    assert (
        results_table.measured(record.model_copy(update={"spec": changed}))
        == "slat_flow size=xl, bs=2, frozen=24 beside tuned_gemm=on on NVIDIA H200"
    )


def test_a_row_has_the_figures_of_the_bundle_and_leads_to_it() -> None:
    row = results_table.row(FLOW, ROOT)
    assert row.startswith("| `segment_sum_broadcast=on` | slat_flow size=xl on NVIDIA H200 | ")
    assert "| default-ON | train/tok_s +125.0 % [124.6, 125.4] | 6 | [text](docs/results/" in row


def test_a_set_of_levers_is_told_with_its_members() -> None:
    record = bundles.read_bundle(FLOW)
    plans = {
        "train/tok_s": "fused_modulate=on: backward=FusedModulate x 60, backward=Index x 1; "
        "attn_backend=fa4: backward=FA4 x 60"
    }
    cand = record.witnesses[1].model_copy(update={"plans": plans})
    of_set = record.model_copy(update={"witnesses": (record.witnesses[0], cand)})
    assert results_table.title(of_set, "s=on") == "`s=on`<br>(fused_modulate=on, attn_backend=fa4)"
    assert results_table.title(record, "s=on") == "`s=on`"


def test_only_decided_runs_have_a_row(tmp_path: Path) -> None:
    folder = tmp_path / "docs/results/h200"
    folder.mkdir(parents=True)
    (folder / "other.json").write_text(json.dumps({"rows": []}))
    (folder / "run.json").write_bytes(FLOW.read_bytes())
    assert [path.name for path in results_table.found(tmp_path)] == ["run.json"]


def test_a_stack_of_several_levers_has_a_row_for_each() -> None:
    waterfall = ROOT / "docs/results/h200/stack-waterfall-slat.json"
    assert waterfall in results_table.stacks(ROOT)
    first, second, *_, last = results_table.stack_rows(waterfall, ROOT)
    assert first.startswith("| slat_flow size=xl on NVIDIA H200, no lever | 1,815 ms | 11.70 % | ")
    assert second.startswith(
        "| + segment_sum_broadcast=on | 827.3 ms | 25.66 % | 98.72 GiB | 2.188x"
    )
    assert last.startswith("| + block_products=on | 413.3 ms | 51.38 % | 60.12 GiB | 1.035x ")


def test_a_stack_of_one_lever_has_none() -> None:
    assert all("frozen24" not in path.name for path in results_table.stacks(ROOT))


def test_the_table_is_replaced_and_nothing_else() -> None:
    text = "before\n\n" + "\n".join([*results_table.HEAD, "| old |"]) + "\n\nafter | x |\n"
    new = results_table.put(text, [*results_table.HEAD, "| new |", "| newer |"])
    assert new == text.replace("| old |", "| new |\n| newer |")
    with pytest.raises(ValueError, match="no table that begins"):
        results_table.put("nothing", [])


def test_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert results_table.main([]) == 0
    both = [*results_table.table(ROOT), "", *results_table.stack_table(ROOT)]
    assert capsys.readouterr().out.splitlines() == both
