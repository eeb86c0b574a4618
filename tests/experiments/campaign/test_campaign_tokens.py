"""A campaign compares the tokens of every lever, and of what ships, on the models that it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments import environment, prepare
from experiments.campaign import reports
from experiments.campaign.files import read, shipped
from experiments.campaign.place import Place
from experiments.campaign.records import CampaignRow
from experiments.campaign.spec import Campaign
from experiments.campaign.tokens import lacking, models_for
from experiments.campaign.tracking import payload
from experiments.environment import Device
from experiments.requests import AbRequest, Listener
from experiments.spec import LeverSetting
from experiments.token_models import Work, known
from experiments.values import Scalar
from experiments.workloads import catalog as workloads
from experiments.workloads.base import DeviceFacts
from levers import catalog
from levers.base import Facts
from levers.errors import BadParameter
from tests.experiments.campaign.test_campaign_run import FAST, HEAD, SLOW, Row, lever
from tests.experiments.campaign.test_campaign_run import row as row
from tests.support.stub_workload import StubWorkload

LISTED = HEAD.replace("blocks = 4", 'blocks = 4\ntokens_on = ["small", "large"]')
H200 = Device(DeviceFacts("cuda:0", "NVIDIA H200", 150_754_820_096, 132, (9, 0)), "GPU-a")


def decoded(
    self: StubWorkload, parameters: Mapping[str, Scalar], model: str, device: DeviceFacts
) -> Mapping[str, Scalar]:
    return {**parameters, "model": model, "model_digest": f"weights of {model}"}


@pytest.fixture
def listed(row: Row, monkeypatch: pytest.MonkeyPatch) -> Row:
    monkeypatch.setattr(StubWorkload, "token_parameters", decoded, raising=False)
    row.has(SLOW, FAST)
    row.write(lever(SLOW), lever(FAST), text=LISTED)
    return row


def asked(row: Row) -> dict[str, tuple[str, ...]]:
    requests = row.machine.asked
    return dict(zip(row.measured, (one.tokens_on for one in requests), strict=True))


def test_the_list_is_that_of_every_lever_and_of_the_binding_run(listed: Row) -> None:
    found = listed.run()
    both = ("small", "large")
    assert asked(listed) == {SLOW: both, FAST: both, "binding": both}
    assert found.state == "TERMINAL"
    assert found.tokens_on == "small (weights of small); large (weights of large)"
    assert "weights of large" in reports.markdown(found)
    assert "weights of large" in reports.page(found)
    assert payload(found, "").parent.params["tokens_on"] == found.tokens_on


def test_another_list_may_be_typed_and_status_takes_what_was_compared_on_more(
    listed: Row,
) -> None:
    words = ("--tokens-on", "large", "--tokens-on", "small", "--tokens-on", "huge")
    found = listed.run(*words)
    assert asked(listed)["binding"] == ("large", "small", "huge")
    assert listed.status().binding == found.binding
    listed.machine.asked.clear()
    assert listed.run().binding == found.binding
    assert listed.measured == []


def test_what_ships_is_measured_again_where_a_model_never_decoded_with_it(listed: Row) -> None:
    listed.write(lever(SLOW), lever(FAST))
    listed.run()
    listed.machine.asked.clear()
    listed.write(lever(SLOW), lever(FAST), text=LISTED)
    slow, fast = listed.status().levers
    assert (slow.state, fast.state) == ("decided", "open")
    assert "were not compared on small, large" in fast.why
    assert listed.run().state == "TERMINAL"
    assert listed.measured == [FAST, "binding"]


def test_a_model_that_a_lever_cannot_decode_with_is_left_out_for_it_and_said(listed: Row) -> None:
    models = LISTED.replace('"large"', f'"large", "small,{FAST}=on"')
    no_kernel = lever(SLOW) + 'tokens_not_on = ["large"]\n'
    listed.write(no_kernel, lever(FAST), text=models)
    listed.run()
    assert asked(listed) == {
        SLOW: ("small",),
        FAST: ("small", "large"),
        "binding": ("small", "large"),
    }
    slow, fast = (one for one in listed.machine.asked if isinstance(one, AbRequest))
    assert slow.selected == (
        f"tokens of {SLOW}=on are not compared on large: the campaign leaves it out for {SLOW}=on",
        f"tokens of {SLOW}=on are not compared on small with {FAST}=on: {FAST} and {SLOW} both "
        "change stub.product",
    )
    assert f"on small with {FAST}=on: {FAST} is what the arms differ by" in fast.selected[0]
    listed.machine.asked.clear()
    assert listed.run().state == "TERMINAL"
    assert listed.measured == []


def test_a_model_that_is_left_out_for_what_ships_is_no_claim_of_the_row_but_a_doubt(
    listed: Row,
) -> None:
    no_kernel = lever(FAST) + 'tokens_not_on = ["large"]\n'
    listed.write(lever(SLOW), no_kernel, text=LISTED)
    found = listed.run()
    assert asked(listed) == {SLOW: ("small", "large"), FAST: ("small",), "binding": ("small",)}
    assert found.tokens_on == "small (weights of small)"
    assert "the tokens of what ships are not compared on: large" in found.doubts
    listed.write(lever(SLOW), no_kernel.replace('["large"', '["small", "large"'), text=LISTED)
    found = listed.status()
    assert found.tokens_on == ""
    assert "the tokens of what ships are not compared on: small, large" in found.doubts


def test_of_several_candidates_each_is_compared_on_all_models_on_which_it_can_run(
    listed: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unmet(self: object, facts: Facts, setting: str) -> tuple[str, ...]:
        able = {"small": ("1", "4"), "large": ("4",), "huge": ()}
        model = str(facts.parameters.get("model", ""))
        return () if setting in able.get(model, (setting,)) else ("no kernel",)

    selected: list[AbRequest] = []

    def select(request: AbRequest, settings: tuple[str, ...], listener: Listener) -> None:
        selected.append(request)
        listed.machine.ab(replace(request, cand="1", tokens_on=("small",)), listener)

    listed.has("planted_several")
    monkeypatch.setattr(type(catalog.get("planted_several")), "unmet", unmet)
    monkeypatch.setattr("experiments.several.ab", select)
    models = LISTED.replace('"large"', '"large", "huge"')
    listed.write(lever("planted_several", "1", "4"), text=models)
    found = listed.run()
    (request,) = selected
    assert request.tokens_on == ("small", "large")
    assert [text.partition(": ")[0] for text in request.selected] == [
        "tokens of planted_several=1 are not compared on huge",
        "tokens of planted_several=4 are not compared on huge",
    ]
    assert (found.levers[0].setting, found.levers[0].state) == ("1", "decided")
    assert asked(listed)["binding"] == ("small",)


def gone(*_: object, **__: object) -> Device:
    raise BadParameter("no device 'cpu' on this machine")


def elsewhere(row: Row) -> CampaignRow:
    """The row as it is drawn where its device is not."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(environment, "find_device", gone)
        return row.status()


def told(row: CampaignRow) -> dict[str, Any]:
    """What a row says, without its own name, the stack of this machine, and times to come."""
    own = {"row_id", "created_at", "versions", "next"}
    return row.model_dump(mode="json", exclude=own)


@pytest.mark.parametrize("text", [LISTED, HEAD, LISTED.replace('"small", ', "")])
@pytest.mark.parametrize("left_out", ["", 'tokens_not_on = ["large"]\n'])
def test_the_same_row_is_drawn_with_its_device_and_without(
    listed: Row, text: str, left_out: str
) -> None:
    listed.run()
    listed.write(lever(SLOW), lever(FAST) + left_out, text=text)
    here = listed.status()
    assert here.state == "TERMINAL"
    assert told(elsewhere(listed)) == told(here)


def test_a_verdict_on_fewer_models_or_other_weights_counts_nowhere_for_want_of_the_device(
    listed: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed.run("--tokens-on", "small")
    found = elsewhere(listed)
    assert [one.state for one in found.levers] == ["decided", "open"]
    assert "were not compared on large" in found.levers[1].why
    assert "no binding run of what ships now" in found.unbound
    here = listed.status()
    assert (here.levers, here.unbound) == (found.levers, found.unbound)
    listed.run()
    assert elsewhere(listed).state == "TERMINAL"

    def others(*asked: Any) -> Mapping[str, Scalar]:
        return {**decoded(*asked), "model_digest": "other weights"}

    monkeypatch.setattr(StubWorkload, "token_parameters", others, raising=False)
    listed.write(lever(SLOW), lever(FAST), text=LISTED.replace(', "large"', ""))
    assert "were not compared on small" in listed.status().levers[1].why
    assert "were not compared on small" in elsewhere(listed).levers[1].why


def test_what_a_lever_lacks_elsewhere_is_no_lack_of_the_model(
    listed: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = h200()
    chain = (LeverSetting(lever="fused_chain", setting="on"),)
    here = models_for(place, chain)
    monkeypatch.setattr("levers.site_lever.importlib.util.find_spec", lambda _: None)
    assert models_for(place, chain).models == ()
    assert models_for(replace(place, device=None), chain) == here
    words = (LeverSetting(lever="mxfp4_weights", setting="on"),)
    (why,) = models_for(replace(place, device=None), words).left_out
    assert "mxfp4_weights is what the arms differ by" in why


def test_weights_quantised_for_the_tokens_alone_are_other_weights() -> None:
    place = h200()
    graph, packed = (
        LeverSetting(lever=one, setting="on") for one in ("cuda_graph", "mxfp4_weights")
    )
    chain = LeverSetting(lever="fused_chain", setting="on")

    def missing(text: str, *beside: LeverSetting) -> tuple[str, ...]:
        work = Work(place.workload, place.parameters, H200, (chain,), beside)
        request = AbRequest("fused_chain", cand="on", workload="decode", oracle="none",
                            settings={"graph": "off", "model": "random-0.6b"})  # fmt: skip
        spec = prepare.compare(request, H200, beside).spec
        spec = spec.model_copy(update={"tokens_on": known([text], work)})
        return lacking(place, spec, (chain,))

    assert missing("shipped") == ("shipped with mxfp4_weights=on",)
    assert missing("shipped,cuda_graph=on", graph) == ("shipped with mxfp4_weights=on",)
    assert missing("shipped,mxfp4_weights=on") == ("shipped",)
    assert missing("shipped,mxfp4_weights=on", packed) == ()


@pytest.mark.parametrize(("words", "goes_on"), [((), True), (("--tokens-on", "huge"), False)])
def test_a_run_that_was_cut_goes_on_only_where_it_has_the_models(
    listed: Row, words: tuple[str, ...], goes_on: bool
) -> None:
    listed.machine.kill = {SLOW}
    listed.said("campaign", "run", "stub-row", code=130)
    listed.machine.asked.clear()
    listed.run(*words)
    first = listed.machine.asked[0]
    assert isinstance(first, AbRequest)
    assert (first.resume is not None) == goes_on


def test_a_mistake_in_the_list_is_said_before_anything_is_measured(listed: Row) -> None:
    said = listed.said(
        "campaign", "run", "stub-row", "--tokens-on", "a", "--tokens-on", "a", code=2
    )
    assert "a is a once more" in said
    said = listed.said("campaign", "run", "published-mxfp4", "--replay", "--tokens-on", "a", code=2)
    assert "decodes nothing; leave out --tokens-on" in said
    assert listed.measured == []


def h200() -> Place:
    campaign = read(shipped() / "decode-h200.toml").campaign
    assert isinstance(campaign, Campaign)
    workload = workloads.get("decode")
    parameters = workload.resolve(campaign.settings, H200.facts)
    work = Work(workload, parameters, H200, ())
    entries = catalog.listed()
    levers = tuple(catalog.get(one.lever) for one in campaign.levers)
    return Place(
        campaign, workload, H200, "", "H200", parameters, levers, entries,
        tokens_on=known(campaign.tokens_on, work),
    )  # fmt: skip


def test_the_row_of_the_h200_names_trained_weights_and_quantised_ones() -> None:
    place = h200()
    for planned in place.campaign.levers:
        one = LeverSetting(lever=planned.lever, setting=planned.candidates[0])
        found = [model.text for model in models_for(place, [one]).models]
        if planned.lever not in ("decode_attn", "mxfp4_weights"):
            assert found == ["shipped", "shipped,mxfp4_weights=on"]
    fa3, triton = (LeverSetting(lever="decode_attn", setting=one) for one in ("fa3", "triton"))
    splits = LeverSetting(lever="fa2_nsplits_cap", setting="tuned")
    beside = models_for(place, [splits], [fa3])
    assert beside.models == ()
    assert beside.left_out[0] == (
        "tokens of fa2_nsplits_cap=tuned are not compared on shipped: the campaign leaves it out "
        "for decode_attn=fa3, which is on in both arms"
    )
    assert "the campaign leaves it out" not in " ".join(
        models_for(place, [splits], [triton]).left_out
    )
    whole = [LeverSetting(lever="cuda_graph", setting="on")]
    whole.append(LeverSetting(lever="mxfp4_weights", setting="on"))
    assert [model.text for model in models_for(place, whole).models] == ["shipped"]


def test_a_campaign_elsewhere_knows_no_model(tmp_path: Path) -> None:
    campaign = read(shipped() / "decode-h200.toml").campaign
    assert isinstance(campaign, Campaign)
    entries = catalog.listed()
    place = Place(campaign, workloads.get("decode"), None, "no GPU", "", {}, (), entries)
    assert models_for(place, [LeverSetting(lever="cuda_graph", setting="on")]).models == ()
