"""The driver of the decode runs: what its steps ask for, and how two calls go on together."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import h200_calls as calls
from benchmarks import h200_decode as driver
from benchmarks.h200_commands import Halt
from benchmarks.h200_decode_rehearsal import REHEARSAL, rehearsed_campaign
from benchmarks.h200_decode_steps import FULL, NO_KERNEL, TRAINED, steps
from benchmarks.h200_journal import Journal
from benchmarks.h200_training_evidence import Evidence, evidence_of, export, spent
from benchmarks.h200_training_packing import restore
from benchmarks.h200_training_steps import MODEL, Step
from experiments import beside, prepare, token_models
from experiments.campaign.files import read, shipped
from experiments.campaign.spec import Campaign
from experiments.environment import Device
from experiments.exit_codes import Exit
from experiments.plan import make_plan
from experiments.registry.store import Registry
from experiments.requests import AbRequest, SilentListener
from experiments.sample_times import first_look_s, times_of
from experiments.stack import prepare as stack_prepare
from experiments.stack.requests import StackRequest
from experiments.workloads import catalog as workloads
from experiments.workloads.base import DeviceFacts
from experiments.workloads.decode.folder import SHIPPED_FOLDER
from tests.support import records_factory, step_words

H200 = Device(DeviceFacts("cuda:0", "NVIDIA H200", 150_754_820_096, 132, (9, 0)), "GPU-a")
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("fa2", "fa3")


def of_kind(*kinds: str) -> list[Step]:
    return [one for one in steps(FULL) if one.kind in kinds]


def asked(step: Step, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a step asks for; trained weights are the shipped ones here."""
    words = [word.replace(MODEL, "shipped") for word in step.words]
    return step_words.asked(words, monkeypatch)


def compared(request: AbRequest) -> prepare.Comparison:
    one = replace(request, cand=request.cand.split(",")[0])
    return prepare.compare(one, H200)


@pytest.mark.parametrize("step", of_kind("ab", "screen"), ids=lambda step: step.name)
def test_each_comparison_can_be_made_on_an_h200(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    request: AbRequest = asked(step, monkeypatch)
    if any(one in " ".join(step.words) for one in PACKAGES):
        monkeypatch.setattr("levers.decode_attn.missing_package", lambda _: ())
    one = compared(request)
    assert one.unmet == ()
    assert list(map(str, beside.asked(request.beside, one))) == list(request.beside)
    needs = workloads.get("decode").needs(one.spec.parameters, H200.facts)
    assert needs.device_memory_bytes < 0.9 * H200.facts.memory_bytes


@pytest.mark.parametrize("step", of_kind("stack"), ids=lambda step: step.name)
def test_each_stack_can_be_made_on_an_h200(
    step: Step, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    request: StackRequest = asked(step, monkeypatch)
    with Registry.open(tmp_path / "registry.db") as registry:
        found = stack_prepare.resolved(request, H200, registry, SilentListener())
    assert found.spec.blocks == 4


def test_the_levers_are_measured_in_the_scope_of_the_campaign_that_takes_them_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    campaign = read(shipped() / f"{FULL.campaign}.toml").campaign
    assert isinstance(campaign, Campaign)
    parameters = workloads.get("decode").resolve(campaign.settings, H200.facts)
    row = {one.lever: one.candidates for one in campaign.levers}
    found = {}
    for step in of_kind("ab"):
        if step.item == "lever":
            request: AbRequest = asked(step, monkeypatch)
            found[request.lever] = (request.cand,)
            assert dict(compared(request).spec.parameters) == dict(parameters)
            assert (request.seed, request.oracle) == (campaign.seed, campaign.lever_oracle)
    assert found == row


def test_tokens_are_compared_on_two_trained_sizes_and_quantised_for_each_lever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {}
    for step in (one for one in of_kind("ab") if one.item == "lever"):
        request: AbRequest = step_words.asked(step.words, monkeypatch)
        assert step.needs == TRAINED
        models = [tuple(text.split(",")) for text in request.tokens_on]
        assert all(set(request.beside) <= set(levers) for _, *levers in models)
        found[request.lever] = {(model, "mxfp4_weights=on" in more) for model, *more in models}
    both = {("shipped", False), (MODEL, False)}
    assert found.pop("decode_attn") == {(MODEL, False), (MODEL, True)}
    assert found.pop("mxfp4_weights") == both
    assert len(found) == 5
    assert all(one == both | {(MODEL, True)} for one in found.values())


@pytest.mark.parametrize(
    "step", [one for one in of_kind("ab") if one.item == "lever"], ids=lambda step: step.name
)
def test_each_lever_can_decode_with_its_models_on_an_h200(
    step: Step, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = trained(tmp_path)
    words = [word.replace(MODEL, str(place)) for word in step.words]
    request: AbRequest = step_words.asked(words, monkeypatch)
    if any(one in " ".join(words) for one in PACKAGES):
        monkeypatch.setattr("levers.decode_attn.missing_package", lambda _: ())
    alone = prepare.compare(request, H200)
    comparison = prepare.compare(request, H200, beside.asked(request.beside, alone))
    spec = token_models.added(comparison, request.tokens_on).spec
    assert len(spec.tokens_on) == len(request.tokens_on)
    for one in spec.tokens_on:
        assert one.parameters["graph"] == "off"
        assert (one.parameters["prompt_tokens"], one.parameters["output_tokens"]) == (2048, 128)


def trained(folder: Path) -> Path:
    """The shipped weights with other dimensions on paper: another digest."""
    place = folder / TRAINED
    shutil.copytree(SHIPPED_FOLDER, place)
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8192}))
    return place


def test_the_row_compares_tokens_on_what_its_levers_were_compared_on() -> None:
    (row,) = of_kind("campaign")
    models = [word for before, word in itertools.pairwise(row.words) if before == "--tokens-on"]
    assert models == ["shipped", MODEL, f"{MODEL},mxfp4_weights=on"]
    assert row.needs == TRAINED
    campaign = read(shipped() / f"{FULL.campaign}.toml").campaign
    assert isinstance(campaign, Campaign)
    left_out = {one.lever for one in campaign.levers if "shipped" in one.tokens_not_on}
    assert left_out == set(NO_KERNEL)


def test_weights_are_trained_first_and_the_quality_of_four_bits_is_timed_on_them() -> None:
    every = steps(FULL)
    assert every[0].makes == TRAINED
    assert {one.item for one in every} == {
        "train", "parity", "lever", "campaign", "large", "quality", "screen",
    }  # fmt: skip
    (quality,) = (one for one in every if one.item == "quality")
    assert "quality=on" in quality.words
    assert quality.needs == TRAINED


def test_a_rehearsal_needs_no_gpu_and_its_campaign_can_be_read(tmp_path: Path) -> None:
    full = {one.name for one in steps(FULL)}
    for step in steps(REHEARSAL):
        assert step.name in full
        assert "cuda" not in " ".join(step.words).replace("cuda_graph", "")
    path = tmp_path / f"{REHEARSAL.campaign}.toml"
    path.write_text(rehearsed_campaign(REHEARSAL))
    assert isinstance(read(path).campaign, Campaign)


# --- two calls on one host ----------------------------------------------------------------------


def call(folder: Path, shared: Path) -> calls.Driver:
    out, state = folder / "out", folder / "state"
    for one in (out, state / "homes", shared):
        one.mkdir(parents=True, exist_ok=True)
    journal = Journal.open(state)
    return calls.Driver(state, out, 600.0, "cuda:0", journal, driver.NAME, lambda: 0.0, shared)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The commands of both calls, none of which is run; training leaves a file of weights."""
    heard: list[tuple[str, ...]] = []

    def within(words: Any, variables: Any, log: Any, limit_s: float, halt: Halt) -> int:
        del variables, log, limit_s, halt
        heard.append(tuple(words[1:]))
        if "--size" in words:
            made = Path(words[-1])
            made.mkdir()
            (made / calls.WEIGHTS).write_text("w")
        return 3 if "campaign" in words else 0

    monkeypatch.setattr(calls, "within", within)
    monkeypatch.setattr(calls, "unfinished", lambda *_: "")
    monkeypatch.setattr(calls, "evidence_of", lambda *_: Evidence("run-1", "a line"))
    return heard


TRAINING = Step("train.weights", ("--size", "x"), 1, module="train", makes=TRAINED)
WORK = Step(
    "tokens.one", ("ab", "x", "--model", MODEL, "--tokens-on", f"{MODEL},y=on"), 1, needs=TRAINED
)


def test_what_needs_trained_weights_waits_for_them_and_gets_their_folder(
    tmp_path: Path, ran: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    alone = call(tmp_path / "one", tmp_path / "shared")
    assert not alone.go([WORK])
    assert "tokens.one             not begun: the weights trained are not trained yet" in (
        capsys.readouterr().out
    )
    assert alone.go([WORK, TRAINING])
    place = tmp_path / "shared" / "models" / TRAINED
    assert (place / calls.WEIGHTS).is_file()
    assert ran[1][-4:] == ("--model", str(place), "--tokens-on", f"{place},y=on")
    other = call(tmp_path / "two", tmp_path / "shared")
    assert other.go([WORK])


def test_two_calls_see_each_others_bundles_and_kept_parity(
    tmp_path: Path, ran: list[tuple[str, ...]]
) -> None:
    one, two = (call(tmp_path / name, tmp_path / "shared") for name in ("one", "two"))
    for folder, name in (("bundles", "ab-x.json"), ("cache/parity", "k.json")):
        (one.state / folder).mkdir(parents=True)
        (one.state / folder / name).write_text("new")
    one.exchange()
    row = Step("campaign.row", ("campaign", "run", "r", "--yes"), 1)
    assert not two.go([row])
    assert two.journal.of(row)["state"] == "open"
    assert (two.state / "cache" / "parity" / "k.json").read_text() == "new"
    taken, began = ran
    assert taken[1:] == ("import", str(two.state / "bundles" / "ab-x.json"))
    assert began[1:] == row.words
    old = two.state / "bundles" / "ab-x.json"
    old.write_text("newer")
    os.utime(old, (2e9, 2e9))
    two.exchange()
    one.exchange()
    assert (one.state / "bundles" / "ab-x.json").read_text() == "newer"


def test_what_an_oracle_compiled_in_one_call_is_found_by_the_other_and_stays_there(
    tmp_path: Path,
) -> None:
    one, two = (call(tmp_path / name, tmp_path / "shared") for name in ("one", "two"))
    kept = Path("cache/oracles/key/inductor/fx/ab/entry")
    for name in (kept, Path("cache/arms/key/triton/kernel")):
        (one.state / name).parent.mkdir(parents=True)
        (one.state / name).write_text("compiled")
    one.exchange()
    (tmp_path / "shared/cache/oracles/7.partial").write_text("half")
    two.exchange()
    assert (two.state / kept).read_text() == "compiled"
    assert not (two.state / "cache/oracles/7.partial").exists()
    assert not (two.state / "cache/arms").exists()
    two.pack()
    again = tmp_path / "again"
    again.mkdir()
    restore(two.out / f"{driver.NAME}.state.tar.gz", again)
    assert not (again / kept).exists()


def test_the_journal_says_where_the_seconds_of_each_arm_went() -> None:
    times = {"oracle": (74.0, 28.0), "ref": (9.0, 9.4), "cand": (6.0, 6.2)}
    plain = records_factory.samples(records_factory.EFFECTS, 2)[0]
    samples = []
    for arm, walls in times.items():
        telemetry = {"warm_compile_s": 64.0, "busy": True} if arm == "oracle" else {}
        for wall in walls:
            seconds = {"wall_s": wall, "start_s": 1.0, "warmup_s": wall - 3, "measured_s": 2.0}
            samples.append(plain.model_copy(update={"arm": arm, "telemetry": telemetry, **seconds}))
            telemetry = {**telemetry, "warm_compile_s": 18.0} if telemetry else {}
    found = spent(samples)
    assert found["ref"] == {"wall": 9.2, "start": 1.0, "warm-up": 6.2, "measured": 2.0}
    assert found["oracle, first"]["warm_compile_s"] == 64.0
    assert found["oracle"]["warm_compile_s"] == 41.0
    assert "busy" not in found["oracle"]


def test_a_call_holds_its_steps_up_to_the_first_look() -> None:
    """Two GPUs, each in calls of 540 seconds: no step that must fit a call whole exceeds one."""
    for step in steps(FULL):
        assert step.resumable or step.seconds < 520
    times = times_of(
        workloads.get("decode"),
        workloads.get("decode").resolve({"model": FULL.small, **FULL.row}, H200.facts),
        H200.facts,
        FULL.oracle,
    )
    graph = next(one for one in steps(FULL) if one.name == "lever.cuda_graph")
    assert first_look_s(make_plan(0, 9, oracle=True), (6, 9), times) < graph.seconds


def test_a_row_is_left_open_until_it_is_met_or_terminal(tmp_path: Path) -> None:
    home = tmp_path / "campaign.row"
    folder = home / "campaigns" / "decode-cpu"
    folder.mkdir(parents=True)
    text = (ROOT / "docs/results/cpu/campaign-decode-cpu.json").read_text()
    (folder / "row.json").write_text(text)
    step = Step("campaign.row", ("campaign", "run", "decode-cpu", "--yes"), 1)
    found = evidence_of(home, step, home / "none").fields()
    assert found["row"] == json.loads(text)["state"] == "TERMINAL"
    assert found["levers"]["fa2_nsplits_cap"] == "default-ON"
    export(home, tmp_path)
    assert (tmp_path / "campaign-decode-cpu.json").read_text() == text


def test_steps_are_taken_in_the_order_in_which_they_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = [f"--{name}={tmp_path / name}" for name in ("out", "state", "shared")]
    assert driver.main([*place, "--list", "--only", "train,lever.fused_block"]) == Exit.VERDICT
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["train.weights", "lever.fused_block"]
