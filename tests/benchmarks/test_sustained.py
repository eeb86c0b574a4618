"""The benchmark of sustained rates in its rehearsal, and the watch of the device beside it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import flow_steps, sustained
from benchmarks.device_watch import Reader, Reading, line, summary, watched_by
from tests.support.fake_nvml import FakeNvml, Gpu

PRINTS = """
import json, sys, time
one = dict(memory_mhz=None, energy_j=None, limit_w=700.0, temperature_c=60, throttles=4,
           power_limited_s=None, heat_limited_s=None, power_w=690.0)
for mhz in (1980, 1500, 1400):
    print(json.dumps(dict(one, at_s=time.monotonic(), sm_mhz=mhz)), flush=True)
    time.sleep(0.05)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out: Path = tmp_path_factory.mktemp("out") / "sustained.json"
    sustained.run("cpu", rehearse=True, out=out)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_every_call_has_a_burst_and_a_sustained_row(stored: dict[str, Any]) -> None:
    named = {
        part: [row["what"] for row in stored["rows"] if row["part"] == part]
        for part in ("burst", "sustained", "zeros", "block")
    }
    assert len(named["burst"]) == 16
    assert named["sustained"] == named["burst"]
    assert named["zeros"] == ["up forward on zeros"]
    assert named["block"] == ["block"]
    assert stored["rehearsal"] is True


def test_a_rate_is_the_work_of_all_calls_over_their_time(stored: dict[str, Any]) -> None:
    size = sustained.REHEARSAL
    flop = 2 * size.rows * size.channels * size.mlp
    (row,) = (r for r in stored["rows"] if r["what"] == "up forward" and r["part"] == "sustained")
    assert row["tflop_s"] == pytest.approx(flop / row["ms"] / 1e9)
    assert row["of_burst"] == pytest.approx(row["tflop_s"] / row["burst_tflop_s"])


def test_the_blocks_work_is_that_of_its_parts_and_of_the_steps_closed_form() -> None:
    size = sustained.REHEARSAL
    drawn = sustained.Drawn("cpu")
    calls = [*sustained.products(size, drawn), *sustained.attentions(size, drawn, "torch")]
    c, rows = size.channels, size.rows
    matmul = 3 * rows * 2 * (4 * c * c + 2 * c * size.mlp)
    attention = 3 * 4 * rows * (size.tokens + size.cond) * c
    assert sustained.block(calls).flop == matmul + attention


def test_readings_of_another_process_are_summed_up_by_stretch() -> None:
    began = time.monotonic()
    with watched_by([sys.executable, "-c", PRINTS]) as watch:
        time.sleep(0.4)
        all_of_it = watch.during(began, time.monotonic())
        nothing = watch.during(began - 9, began - 8)
    assert all_of_it["readings"] == 3
    assert (all_of_it["sm_mhz_min"], all_of_it["sm_mhz_median"]) == (1400, 1500)
    assert all_of_it["throttled"] == {"power-cap": 1.0}
    assert line(all_of_it) == "1500 MHz (least 1400), 690 of 700 W, 60 C, power-cap 100%"
    assert nothing == {"readings": 0, "throttled": {}}
    assert line(nothing) == "clock not known"


def test_a_watch_that_ends_at_once_says_why() -> None:
    with (
        pytest.raises(RuntimeError, match="no driver here"),
        watched_by([sys.executable, "-c", "raise SystemExit('no driver here')"]),
    ):
        pass


def test_counters_become_shares_of_the_time() -> None:
    def at(seconds: float, joules: float | None, limited: float) -> Reading:
        return Reading(seconds, 1500, 3201, 600.0, joules, 700.0, 60, 4, limited, 0.0)

    seen = summary([at(1.0, 100.0, 5.0), at(2.0, None, 5.5), at(3.0, 1400.0, 6.5)])
    assert seen["power_w_mean"] == 650.0
    assert seen["power_limited"] == 0.75
    assert seen["heat_limited"] == 0.0


def test_what_a_gpu_does_not_tell_is_absent_and_no_error() -> None:
    class Silent(FakeNvml):
        def __getattr__(self, name: str) -> Any:
            def refuse(*_: object) -> object:
                raise self.NVMLError("Not Supported")

            if not name.startswith("nvml"):
                raise AttributeError(name)
            return refuse

    reading = Reader("GPU-aa", Silent(Gpu("GPU-aa", power_mw=650_000, throttles=4))).now()
    assert (reading.sm_mhz, reading.power_w, reading.temperature_c) == (1980, 650.0, 50)
    assert (reading.energy_j, reading.limit_w, reading.power_limited_s) == (None, None, None)
    assert summary([reading])["throttled"] == {"power-cap": 1.0}


def test_the_fast_look_stores_what_the_device_did_and_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "steps.json"
    small = ["depth=1", "bs=1", "grid=2", "steps=2", "warmup=1"]
    levers = "fused_modulate=on,fused_gate_residual=on"
    words = ["flow_steps", "ss_flow", "--levers", levers, "--first", "1", "--out", str(out)]
    monkeypatch.setattr("sys.argv", [*words, *(w for one in small for w in ("--set", one))])
    assert flow_steps.main() == 0
    rows = json.loads(out.read_text())["rows"]
    assert [len(row["levers"]) for row in rows] == [1, 2]
    assert all(row["device"] == {"readings": 0, "throttled": {}} for row in rows)
    assert all(len(row["step_s"]) == 2 for row in rows)
    assert not any("enqueue_s" in row for row in rows)


def test_the_fast_look_says_what_the_host_takes_of_a_step() -> None:
    row = {"step_s": (0.41, 0.45, 0.42), "enqueue_s": (0.3, 0.4, 0.31)}
    row |= {"enqueue_forward_s": (0.1, 0.2, 0.11)}
    said = "the host takes 310.0 ms to enqueue a step of 420.0 ms, 110.0 of them in the forward"
    assert flow_steps.host_line(row).strip() == said
    assert flow_steps.host_line({"step_s": (0.41,)}) == ""
