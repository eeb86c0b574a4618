"""The driver of the training runs: order, time, going on, and what travels."""

from __future__ import annotations

import json
import os
import sys
import tarfile
from pathlib import Path

import pytest

from benchmarks import h200_calls as calls
from benchmarks import h200_training as driver
from benchmarks.h200_commands import Halt, within
from benchmarks.h200_journal import Journal
from benchmarks.h200_training_evidence import Evidence, evidence_of, export, unfinished
from benchmarks.h200_training_packing import restore
from benchmarks.h200_training_steps import FULL, REHEARSAL, RUN, Scale, Step, steps
from experiments import beside, bundles, prepare
from experiments.environment import Device
from experiments.registry.store import Registry
from experiments.requests import AbRequest, SilentListener
from experiments.stack import prepare as stack_prepare
from experiments.stack.requests import StackRequest
from experiments.workloads import catalog as workloads
from experiments.workloads.base import DeviceFacts
from levers import catalog
from levers.base import claims
from tests.support import step_words

H200 = Device(DeviceFacts("cuda:0", "NVIDIA H200", 150_754_820_096), "GPU-a")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the sets: the tests only read them."""
    state = tmp_path_factory.mktemp("sets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEVERGATE_LEVERS", "")  # is set when they are written, and put back
        driver.prepare_sets(state, FULL)
    return state / "levers"


@pytest.fixture
def sets(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEVERGATE_LEVERS", str(written))
    monkeypatch.setattr(prepare, "unmet_by", lambda *_: ())  # packages that only a GPU needs


def of_kind(kind: str, scale: Scale = FULL) -> list[Step]:
    return [one for one in steps(scale) if one.kind == kind]


@pytest.mark.usefixtures("sets")
@pytest.mark.parametrize("step", [*of_kind("ab"), *of_kind("screen")], ids=lambda step: step.name)
def test_each_comparison_can_be_made_on_an_h200(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    request: AbRequest = step_words.asked(step.words, monkeypatch)
    one = prepare.compare(
        AbRequest(request.lever, "off", request.cand.split(",")[0], request.workload,
                  settings=request.settings, max_pairs=request.max_pairs, oracle=request.oracle),
        H200,
    )  # fmt: skip
    stack = beside.asked(request.beside, one)
    assert list(map(str, stack)) == list(request.beside)
    assert one.spec.looks in ((6,), one.spec.looks if step.kind == "screen" else (6,))
    needs = workloads.get(one.spec.workload).needs(one.spec.parameters, H200.facts)
    assert needs.device_memory_bytes < 0.95 * H200.facts.memory_bytes


@pytest.mark.usefixtures("sets")
@pytest.mark.parametrize("step", of_kind("stack"), ids=lambda step: step.name)
def test_each_stack_can_be_made_on_an_h200(
    step: Step, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    request: StackRequest = step_words.asked(step.words, monkeypatch)
    with Registry.open(tmp_path / "registry.db") as registry:
        found = stack_prepare.resolved(request, H200, registry, SilentListener())
    assert found.spec.blocks == 4
    assert len(found.spec.rows) == len(found.spec.levers) + 1


@pytest.mark.usefixtures("sets")
def test_the_sets_may_stand_together_and_each_has_sites_in_its_workload() -> None:
    for name, members in FULL.named.items():
        lever = catalog.get(name)
        claims(lever.levers)  # type: ignore[attr-defined]
        assert len(lever.levers) == len(members)  # type: ignore[attr-defined]
    assert catalog.get("whole_stack").workloads == ("slat_flow",)
    assert "ss_flow" in catalog.get("whole_stack_ss").workloads


def test_a_rehearsal_has_the_same_steps_on_the_cpu() -> None:
    names = [one.name for one in steps(FULL)]
    small = steps(REHEARSAL)
    assert [one.name for one in small] == names
    assert len(set(names)) == len(names)
    for one in small:
        named = [word for word in one.words if word.startswith("attn_backend=")]
        assert not named
        assert "cuda" not in " ".join(one.words)
        assert "size=xl" not in one.words


# --- the driver, on commands of a moment ---------------------------------------------------------


class Clock:
    """A clock that the tests turn."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> calls.Driver:
    """A call of 600 s in which nothing is measured; each command takes its step's seconds."""
    monkeypatch.setattr(calls, "unfinished", lambda *_: "")
    monkeypatch.setattr(calls, "evidence_of", lambda *_: Evidence("run-1", "a line"))
    out, state = tmp_path / "out", tmp_path / "state"
    out.mkdir()
    (state / "homes").mkdir(parents=True)
    clock = Clock()
    made = calls.Driver(state, out, 600.0, "cuda:0", Journal.open(state), driver.NAME, clock)

    def command(self: calls.Driver, step: Step, begun: str) -> int | None:
        ran.append((step.name, begun))
        left = self.left_s()
        clock.now += min(step.seconds, left)
        return 0 if step.seconds <= left else None

    ran: list[tuple[str, str]] = []
    monkeypatch.setattr(calls.Driver, "command", command)
    monkeypatch.setattr(calls.Driver, "ran", ran, raising=False)
    return made


def ab(name: str, seconds: float) -> Step:
    return Step(name, ("ab", "a_lever", "--cand", "on"), seconds)


def look(name: str, seconds: float) -> Step:
    return Step(name, ("slat_flow",), seconds, module="benchmarks.flow_steps")


def test_what_fits_is_run_and_what_cannot_go_on_later_is_not_begun(
    call: calls.Driver, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = [ab("a.one", 400), look("b.look", 200), ab("c.long", 900), ab("d.more", 10)]
    assert not call.go(plan)
    assert call.ran == [("a.one", ""), ("c.long", "")]  # type: ignore[attr-defined]
    states = {name: one["state"] for name, one in call.journal.found.items()}
    assert states == {"a.one": "done", "c.long": "interrupted"}
    said = capsys.readouterr().out
    assert "b.look                 not begun: 178 s are left, and it takes about 200" in said
    assert "d.more                 not begun" in said
    summary = json.loads((call.out / "h200_training.json").read_text())
    assert summary["a.one"]["run"] == "run-1"
    assert summary["c.long"]["seconds"] == pytest.approx(178)


def test_the_next_call_goes_on_with_what_was_interrupted(
    call: calls.Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = [ab("a.one", 400), ab("c.long", 500)]
    call.go(plan)
    monkeypatch.setattr(calls, "unfinished", lambda *_: "run-7")
    call.deadline, call.journal = 2000.0, Journal.open(call.state)
    assert call.go(plan)
    assert call.ran[-1] == ("c.long", "run-7")  # type: ignore[attr-defined]
    assert call.journal.of(plan[1])["calls"] == 2
    call.ran.clear()  # type: ignore[attr-defined]
    assert call.go(plan)
    assert call.ran == []  # type: ignore[attr-defined]
    call.journal.forget(["a.one"])
    assert not call.journal.done(plan[0])


def test_words_begin_go_on_or_name_the_run_of_another_step(call: calls.Driver) -> None:
    one = ab("a.one", 1)
    stack = Step("w.all", ("stack", "slat_flow"), 1)
    roofline = Step("r.one", ("roofline", RUN, "--record"), 1, home="a.one")
    assert call.words(one, "") == one.words
    assert call.words(one, "x") == ("ab", "a_lever", "--resume", "x", "--yes")
    assert call.words(stack, "x") == ("stack", "--resume", "x", "--yes")
    assert call.not_begun(roofline) == "it needs the run of a.one"
    call.journal.note(one, run="run-9")
    assert call.not_begun(roofline) == ""
    assert call.words(roofline, "") == ("roofline", "run-9", "--record")
    assert call.home(roofline) == call.home(one)


def test_a_run_that_cannot_go_on_here_begins_anew(
    call: calls.Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "unfinished", lambda *_: "run-7")
    codes = {"run-7": 2, "": 0}
    monkeypatch.setattr(calls.Driver, "command", lambda _, __, begun: codes[begun])
    call.take(ab("a.one", 1))
    assert call.journal.found["a.one"]["state"] == "done"


def test_what_misses_a_package_is_tried_again_by_the_next_call(
    call: calls.Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    unmet = Evidence("run-1", "invalid (unmet)", {"reason": "unmet"})
    monkeypatch.setattr(calls, "evidence_of", lambda *_: unmet)
    one = ab("a.one", 1)
    assert not call.go([one])
    assert call.journal.of(one)["state"] == "failed"


def test_the_bundle_of_a_decided_run_has_its_text_beside_it(tmp_path: Path) -> None:
    record = bundles.read_bundle(ROOT / "docs/results/h200/segment_sum_broadcast-slat_flow-xl.json")
    folder = tmp_path / "home" / "runs" / record.run_id
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(record.model_dump_json())
    (folder / "journal.jsonl").write_text("")
    (folder / "verdict.json").write_text(record.model_dump_json())
    out = tmp_path / "out"
    out.mkdir()
    export(tmp_path / "home", out)
    name = "segment_sum_broadcast-slat_flow-xl"
    assert sorted(path.name for path in out.iterdir()) == [f"{name}.json", f"{name}.md"]
    assert bundles.read_bundle(out / f"{name}.json") == record
    step = ab("levers.broadcast", 1)
    said = evidence_of(tmp_path / "home", step, out / "none")
    assert said.run == record.run_id
    assert said.text.startswith("default-ON (failing-axis-win)  train/tok_s +125.0 %")
    assert unfinished(tmp_path / "home", "ab") == ""


def test_a_command_is_interrupted_at_its_limit_and_its_group_ended(tmp_path: Path) -> None:
    program = (  # a process that a shell puts into the background ignores interrupts
        "import signal, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try: time.sleep(60)\nexcept KeyboardInterrupt: print('stopped')"
    )
    with (tmp_path / "log").open("a") as log:
        code = within([sys.executable, "-c", program], os.environ, log, 1.0, Halt())
        assert code is None
        assert (
            within([sys.executable, "-c", "raise SystemExit(4)"], os.environ, log, 9, Halt()) == 4
        )
    assert (tmp_path / "log").read_text() == "stopped\n"


def test_the_state_travels_without_compile_caches_and_is_not_restored_twice(
    call: calls.Driver, tmp_path: Path
) -> None:
    one = ab("a.one", 1)
    home = call.home(one)
    (call.state / "cache" / "parity").mkdir()
    (call.state / "cache" / "parity" / "x.json").write_text("{}")
    (call.state / "cache" / "arms").mkdir()
    (call.state / "cache" / "arms" / "big").write_text("x")
    (home / "runs").mkdir()
    call.take(one)
    call.pack()
    packed = call.out / "h200_training.state.tar.gz"
    with tarfile.open(packed) as file:
        assert "homes/a.one/runs" in file.getnames()
    again = tmp_path / "again"
    again.mkdir()
    assert restore(packed, again).endswith("is restored from h200_training.state.tar.gz")
    assert (again / "cache" / "parity" / "x.json").exists()
    assert not (again / "cache" / "arms").exists()
    assert Journal.open(again).done(one)
    assert restore(packed, again).endswith("nothing is restored")
    assert len(list(call.out.iterdir())) <= 4


def test_items_and_steps_can_be_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    place = ["--out", str(tmp_path), "--state", str(tmp_path / "state")]
    assert driver.main([*place, "--list", "--only", "ss,levers.compile"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["levers.compile", "ss.look", "ss.whole"]


def test_another_whole_set_is_taken_in_every_step_that_has_it() -> None:
    whole = "segment_sum_broadcast=on,fused_modulate=on,gemm_epilogue_mlp=on"
    words = ["--whole", whole, "--whole-dense", "fused_modulate=on"]
    scale = driver.scale_of(driver.parsed(words))
    assert scale.named["whole_stack"] == tuple(whole.split(","))
    found = {one.name: " ".join(one.words) for one in steps(scale)}
    assert "--levers fused_modulate=on --whole" in found["ss.look"]
    assert "tuned_gemm" not in found["batch.screen"]
    assert "gemm_epilogue_mlp" not in found["fp8.e4m3"]
    assert driver.scale_of(driver.parsed([])) == FULL
