"""The models of ``--tokens-on``: which are taken, with which parameters, and what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from experiments import environment, pipeline, prepare, render, token_models
from experiments.environment import Device
from experiments.prepare import Comparison
from experiments.requests import AbRequest, SilentListener
from experiments.spec import AbSpec, LeverSetting
from experiments.tracking.payload import payload
from experiments.view.facts import provenance_facts, reproduce_command
from experiments.view.verdict import view
from experiments.workloads.base import DeviceFacts
from experiments.workloads.decode.folder import SHIPPED_FOLDER
from levers.errors import BadParameter, UsageError
from tests.support import records_factory

H200 = Device(DeviceFacts("cuda:0", "NVIDIA H200", 150_754_820_096, 132, (9, 0)), "GPU-a")
CPU = environment.find_device("cpu")


def compared(
    lever: str = "fa2_nsplits_cap", cand: str = "auto", device: Device = CPU, **settings: str
) -> Comparison:
    request = AbRequest(lever, cand=cand, workload="decode", oracle="none", settings=settings)
    return prepare.compare(request, device)


def on(comparison: Comparison, *texts: str) -> AbSpec:
    return token_models.added(comparison, texts).spec


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """Other weights than the shipped ones, by their digest."""
    folder = tmp_path / "trained"
    shutil.copytree(SHIPPED_FOLDER, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 320}))
    return folder


def test_a_run_on_random_weights_gets_the_parameters_of_a_trained_model() -> None:
    graph = {"model": "random-0.6b", "graph": "off", "prompt_tokens": "1024", "page_size": "256"}
    spec = on(compared(device=H200, **graph), "shipped", "shipped,mxfp4_weights=on")
    one, packed = spec.tokens_on
    assert spec.parameters["model"] == "random-0.6b"
    assert one.parameters["model"] == "shipped"
    assert one.parameters["model_digest"] == one.digest != spec.parameters["model_digest"]
    kept = ("prompt_tokens", "output_tokens", "concurrency", "graph", "page_size", "attn")
    assert all(one.parameters[name] == spec.parameters[name] for name in kept)
    assert (spec.parameters["kv_block"], one.parameters["kv_block"]) == (128, 256)
    assert packed.levers == (LeverSetting(lever="mxfp4_weights", setting="on"),)
    assert (packed.text, packed.label) == (
        "shipped,mxfp4_weights=on",
        "shipped with mxfp4_weights=on",
    )


def test_lengths_are_cut_to_the_context_of_the_model(trained: Path) -> None:
    spec = on(compared(), str(trained))
    (one,) = spec.tokens_on
    lengths = [one.parameters[name] for name in ("prompt_tokens", "output_tokens", "round_steps")]
    assert lengths == [272, 48, 6]
    assert spec.parameters["prompt_tokens"] == 832
    assert one.described(spec.parameters) == (
        f"trained ({one.digest}, prompt_tokens=272, quality=on)"
    )


def test_a_spec_without_them_is_written_as_it_was() -> None:
    spec = compared().spec
    assert "tokens_on" not in json.loads(spec.model_dump_json())
    with_one = on(compared(), "shipped")
    assert AbSpec.model_validate_json(with_one.model_dump_json()) == with_one
    assert with_one.content_digest() != spec.content_digest()


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (("random-0.6b",), "random-0.6b has random weights.*name shipped, or a Hugging Face"),
        (("random-9b",), "random-9b has random weights"),
        (("shiped",), "no model 'shiped' to decode tokens with; name shipped, or a"),
        (("",), "no model '' to decode tokens with"),
        (("shipped", " shipped "), "shipped is shipped once more .*; name each model once"),
        (("shipped,mxfp4_weights=off",), "adds nothing to a stack; leave it out of --tokens-on"),
        (("shipped,mxfp4_weights=maybe",), "has no setting 'maybe'"),
        (("shipped,mxfp4_weight=on",), "did you mean 'mxfp4_weights'"),
        (("shipped,fa2_nsplits_cap=2",), "fa2_nsplits_cap is what the arms differ by"),
        (("shipped,cuda_graph=on",), "cuda_graph=on cannot run there: a cpu has no CUDA graphs"),
        (("shipped,segment_sum_broadcast=on",), "has no site in workload 'decode'"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_cure(texts: tuple[str, ...], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        on(compared(), *texts)


def test_the_same_weights_in_another_folder_are_the_same_model(tmp_path: Path) -> None:
    shutil.copytree(SHIPPED_FOLDER, tmp_path / "copy")
    with pytest.raises(UsageError, match="is shipped once more"):
        on(compared(), "shipped", str(tmp_path / "copy"))


def test_other_prompts_are_another_comparison(trained: Path) -> None:
    before, shipped = on(compared(), str(trained), "shipped").tokens_on
    text = (trained / "prompts.txt").read_text()
    (trained / "prompts.txt").write_text(text[1000:] + text[:1000])
    after, again = on(compared(), str(trained), "shipped").tokens_on
    assert before.digest != after.digest
    assert shipped.digest == again.digest


def test_two_models_of_one_name_could_not_be_told_apart(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    shutil.copytree(SHIPPED_FOLDER, tmp_path / "other" / "trained")
    with pytest.raises(UsageError, match="two models are called trained"):
        on(compared(), str(trained), str(tmp_path / "other" / "trained"))


def test_a_lever_that_cannot_run_with_the_models_parameters_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unmet(self: object, facts: Any, setting: str) -> tuple[str, ...]:
        return ("no kernel for its heads",) if facts.parameters["model"] == "shipped" else ()

    monkeypatch.setattr("levers.decode_attn.DecodeAttn.unmet", unmet)
    comparison = compared("decode_attn", "fa3", H200, model="random-0.6b")
    assert comparison.unmet == ()
    with pytest.raises(UsageError, match="decode_attn=fa3 cannot run there: no kernel for its"):
        on(comparison, "shipped")


def test_a_lever_of_the_stack_at_another_setting_is_refused() -> None:
    early = (LeverSetting(lever="fused_block", setting="early"),)
    request = AbRequest("fa2_nsplits_cap", workload="decode", oracle="none")
    comparison = prepare.compare(request, H200, early)
    assert on(comparison, "shipped,fused_block=early").tokens_on
    with pytest.raises(UsageError, match="fused_block=early is on in both arms, and not on"):
        on(comparison, "shipped,fused_block=on")


def test_a_workload_that_decodes_nothing_has_none() -> None:
    request = AbRequest("segment_sum_broadcast", oracle="none")
    with pytest.raises(UsageError, match=r"slat_flow decodes no tokens.*leave out --tokens-on"):
        on(prepare.compare(request, CPU), "shipped")


def test_a_run_does_not_go_on_with_other_weights(trained: Path) -> None:
    comparison = token_models.added(compared(), (str(trained),))
    token_models.refuse_changed(comparison.spec, comparison.workload, CPU)
    (trained / "config.json").write_text((SHIPPED_FOLDER / "config.json").read_text())
    with pytest.raises(BadParameter, match=r"the weights of .*trained have changed"):
        token_models.refuse_changed(comparison.spec, comparison.workload, CPU)
    shutil.rmtree(trained)
    with pytest.raises(BadParameter, match="no model"):
        token_models.refuse_changed(comparison.spec, comparison.workload, CPU)


def test_a_run_does_not_go_on_with_other_weights_of_the_timed_model(trained: Path) -> None:
    short = {"prompt_tokens": "64", "output_tokens": "32", "ttft_tokens": "32"}
    comparison = compared(model=str(trained), **short)
    go_on = partial(token_models.refuse_changed, comparison.spec, comparison.workload, CPU)
    go_on(tokens=False)
    (trained / "config.json").write_text((SHIPPED_FOLDER / "config.json").read_text())
    for tokens in (False, True):
        with pytest.raises(BadParameter, match=r"the weights of .*trained have changed"):
            go_on(tokens=tokens)
    shutil.rmtree(trained)
    with pytest.raises(BadParameter, match="does not exist"):
        go_on(tokens=False)


class Exchanging(SilentListener):
    """Puts other weights into a folder once a stage begins."""

    def __init__(self, stage: str, folder: Path) -> None:
        self.stage, self.folder = stage, folder

    def on_stage(self, name: str, detail: str = "") -> None:
        if name == self.stage:
            (self.folder / "config.json").write_text((SHIPPED_FOLDER / "config.json").read_text())


@pytest.mark.parametrize(
    ("stage", "timed"),
    [("witness", True), pytest.param("parity", False, marks=pytest.mark.slow)],
)
def test_a_run_whose_weights_are_exchanged_while_it_goes_on_is_invalid_and_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trained: Path, stage: str, timed: bool
) -> None:
    monkeypatch.setenv("LEVERGATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LEVERGATE_LOCKS", str(tmp_path / "locks"))
    settings = {**SMALL, "rounds": "4", **({"model": str(trained)} if timed else {})}
    models = () if timed else (str(trained),)
    request = AbRequest(
        "fa2_nsplits_cap", cand="auto", oracle="none", settings=settings, tokens_on=models
    )
    record = pipeline.ab(request, Exchanging(stage, trained), mirror=False)
    assert record.decision is not None
    assert (record.decision.outcome, record.decision.reason) == ("invalid", "inputs-differ")
    assert "trained have changed since the run began" in record.decision.detail
    assert "start a new run for other weights" in record.decision.detail
    assert record.samples == ()


def test_every_report_names_them_with_their_weights() -> None:
    whole = records_factory.default_on()
    models = on(compared(), "shipped", "shipped,mxfp4_weights=on").tokens_on
    spec = whole.spec.model_copy(update={"tokens_on": models})
    record = whole.model_copy(update={"spec": spec})
    told = dict(provenance_facts(record))["tokens on"]
    assert told.startswith(f"shipped ({models[0].digest}")
    assert "; shipped with mxfp4_weights=on (" in told
    asked = "--tokens-on shipped --tokens-on shipped,mxfp4_weights=on"
    assert reproduce_command(record).endswith(asked)
    for text in (render.markdown(view(record)), render.html(view(record), ())):
        assert models[0].digest in text
        assert asked in text
    assert payload(record, "").parent.params["tokens_on"] == told
    assert "tokens_on" not in payload(whole, "").parent.params


SMALL = {
    "concurrency": "1,2",
    "prompt_tokens": "64",
    "output_tokens": "8",
    "rounds": "2",
    "round_steps": "7",
    "ttft_repeats": "20",
    "ttft_tokens": "16",
    "kv_block": "16",
    "page_size": "16",
}


@pytest.mark.slow
def test_one_comparison_from_its_request_to_its_parity(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trained: Path
) -> None:
    monkeypatch.setenv("LEVERGATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LEVERGATE_LOCKS", str(tmp_path / "locks"))
    texts = ("shipped", f"{trained},mxfp4_weights=on")
    request = AbRequest(
        "fa2_nsplits_cap",
        cand="auto",
        oracle="none",
        settings={**SMALL, "rounds": "4"},
        max_pairs=6,
        tokens_on=texts,
        parity_only=True,
    )
    record = pipeline.ab(request, SilentListener(), mirror=False)
    assert not record.failures
    assert [one.text for one in record.spec.tokens_on] == list(texts)
    assert record.parity is not None
    checks = {one.name: one for one in record.parity.checks}
    assert (checks["tokens"].status, checks["tokens"].total) == ("passed", 64)
    assert "trained with mxfp4_weights=on: 32/32" in checks["tokens"].detail
    other = replace(request, resume=record.run_id, tokens_on=("shipped",))
    with pytest.raises(UsageError, match=r"has --tokens-on .*mxfp4_weights=on shipped, not ship"):
        pipeline.ab(other, SilentListener(), mirror=False)
