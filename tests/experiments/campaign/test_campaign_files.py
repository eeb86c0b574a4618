"""The campaigns that ship: each can be read, and names levers and axes that are there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cli
from experiments import preflight, prepare
from experiments.campaign import files
from experiments.campaign import tracking as campaign_tracking
from experiments.campaign.files import read, shipped
from experiments.campaign.records import CampaignRow
from experiments.campaign.spec import Campaign, Goal, RecordedCampaign
from experiments.environment import Device
from experiments.parsing import budget_seconds
from experiments.requests import AbRequest
from experiments.sample_times import first_look_s, times_of
from experiments.workloads import catalog as workloads
from experiments.workloads.base import DeviceFacts
from levers import catalog
from levers.errors import BadParameter
from levers.policy import Axis
from tests.support.campaign_machine import home_at

DEVICES = {
    "cpu": DeviceFacts("cpu", "test cpu", 8 << 30),
    "cuda": DeviceFacts("cuda:0", "NVIDIA H200", 139 << 30, 132, (9, 0)),
}
MEASURED = ("decode-cpu", "decode-h200")
DECODE_LEVERS = {
    "fa2_nsplits_cap",
    "decode_attn",
    "fused_chain",
    "qk_norm_rope",
    "cuda_graph",
    "fused_block",
    "mxfp4_weights",
}


@pytest.mark.parametrize("name", MEASURED)
def test_a_shipped_campaign_names_levers_axes_and_an_oracle_that_are_there(name: str) -> None:
    campaign = read(shipped() / f"{name}.toml").campaign
    assert isinstance(campaign, Campaign)
    workload = workloads.get(campaign.workload)
    parameters = workload.resolve(campaign.settings, DEVICES[campaign.device])
    axes = {axis.name for axis in workload.axes(parameters)}
    assert {goal.axis for goal in campaign.axes} <= axes
    assert prepare.oracle_of(workload, campaign.oracle) == campaign.oracle
    for planned in campaign.levers:
        lever = catalog.get(planned.lever)
        assert campaign.workload in lever.workloads
        for setting in planned.candidates:
            lever.settings.check(lever.name, setting)


@pytest.mark.parametrize("name", MEASURED)
def test_the_decode_campaigns_hold_every_lever_of_decode(name: str) -> None:
    campaign = read(shipped() / f"{name}.toml").campaign
    assert isinstance(campaign, Campaign)
    known = {o.name for o in (e.lever for e in catalog.listed()) if o and "decode" in o.workloads}
    assert known >= DECODE_LEVERS
    assert known <= set(campaign.named)
    assert {one.lever for one in campaign.levers} <= known


def test_the_campaign_of_the_h200_holds_all_concurrencies_and_captures_by_its_lever() -> None:
    campaign = read(shipped() / "decode-h200.toml").campaign
    assert isinstance(campaign, Campaign)
    assert [goal.axis.rpartition("/c")[2] for goal in campaign.axes] == [
        str(c) for c in (1, 2, 4, 8, 16, 32)
    ]
    assert campaign.levers[0].lever == "cuda_graph"
    assert campaign.settings["graph"] == "off"


def test_the_levers_of_the_h200_can_be_begun_within_their_budget() -> None:
    """By the workload's own estimate; all of them were refused once."""
    campaign = read(shipped() / "decode-h200.toml").campaign
    assert isinstance(campaign, Campaign)
    workload, device = workloads.get("decode"), Device(DEVICES["cuda"], "GPU-a")
    parameters = workload.resolve(campaign.settings, DEVICES["cuda"])
    times = times_of(workload, parameters, DEVICES["cuda"], campaign.lever_oracle)
    for planned in campaign.levers:
        request = AbRequest(
            planned.lever, "off", planned.candidates[0], "decode", settings=campaign.settings,
            oracle=campaign.lever_oracle,
        )  # fmt: skip
        one = prepare.compare(request, device)
        preflight.check_budget(
            budget_seconds(campaign.lever_budget),
            first_look_s(one.plan, one.spec.looks, times),
        )


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("LEVERGATE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(campaign_tracking, "mirror", lambda *_: "")
    return tmp_path / "home"


def test_the_published_row_is_decided_again_from_its_figures(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["campaign", "run", "published-mxfp4", "--replay", "--json"]) == 0
    answer: Any = json.loads(capsys.readouterr().out)
    row = CampaignRow.model_validate(answer["row"])
    assert (row.state, row.recorded, row.confidence) == ("TERMINAL", True, "low")
    states = {axis.axis.rpartition("/")[2]: axis.state for axis in row.axes}
    assert states.pop("peak_bytes") == "met"
    assert states == {"c1": "met", "c2": "missed", "c4": "missed", "c8": "missed"}
    cap, glue = row.levers
    assert (str(cap.outcome), cap.reason) == ("gated-OFF", "no-failing-axis-win")
    assert (cap.accepted, cap.credited, cap.default_state) == ("held", "not on", "off")
    assert (str(glue.outcome), glue.default_state) == ("default-ON", "on")
    assert "not decided again" in glue.why
    assert {path.state for path in row.paths} == {"declined", "unbuilt"}
    assert any("not repeated" in text for text in row.doubts)


def test_the_cap_would_ship_if_a_failing_axis_had_moved() -> None:
    """The verdict of the published row comes from the rules, not from the file."""
    from datetime import UTC, datetime

    from experiments.campaign import recorded

    path = shipped() / "published-mxfp4.toml"
    text = path.read_text().replace("oracle_ratio_after = 0.969", "oracle_ratio_after = 0.999")
    moved = RecordedCampaign.model_validate(files.tomllib.loads(text))
    row = recorded.replayed(read(path), moved, datetime.now(UTC))
    assert (str(row.levers[0].outcome), row.levers[0].reason) == ("default-ON", "failing-axis-win")


def test_a_published_row_can_be_closed_and_shown(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["campaign", "close", "published-mxfp4", "--name", "ada"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "RECORDED: figures that others published" in shown
    assert "CLOSED by ada" in shown
    assert cli.main(["campaign", "status", "published-mxfp4", "--markdown"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("### ⚫ TERMINAL: campaign published-mxfp4")
    assert "| decode/tok_s/c2 | missed | 0.962 | >= 1.00 x oracle |" in text
    assert "\n\n\n" not in text


def test_a_campaign_of_the_home_cannot_hide_a_shipped_one(tmp_path: Path) -> None:
    home = home_at(tmp_path / "home")
    (home.root / "campaigns").mkdir()
    (home.root / "campaigns" / "decode-cpu.toml").write_text("")
    with pytest.raises(BadParameter, match="ships with levergate"):
        files.load("decode-cpu", home)


def test_a_campaign_is_also_found_by_the_path_of_its_file(tmp_path: Path) -> None:
    home = home_at(tmp_path / "home")
    assert files.load(str(shipped() / "decode-cpu.toml"), home).name == "decode-cpu"
    with pytest.raises(BadParameter, match="cannot read"):
        files.load(str(tmp_path / "none.toml"), home)


def test_a_target_is_described_with_its_direction() -> None:
    rate, gap = Axis("r", "tok/s", True), Axis("g", "ms", False)
    assert Goal(axis="r").describe("sdpa") == ">= 1.00 x sdpa"
    assert Goal(axis="r", value=200, at_least=1.5).describe("sdpa", rate) == ">= 300 tok/s"
    assert Goal(axis="g", value=3, at_least=1.5).describe("sdpa", gap) == "<= 2 ms"
