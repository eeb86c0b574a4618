"""The example of docs/campaigns.md is a campaign that can be resolved."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from experiments.campaign import reports
from experiments.campaign.records import CampaignRow
from experiments.campaign.spec import Campaign
from experiments.workloads import catalog as workloads
from experiments.workloads.base import DeviceFacts
from levers import catalog

DOCS = Path(__file__).parents[3] / "docs" / "campaigns.md"
RESULTS = DOCS.parent / "results" / "cpu"


def test_the_example_of_the_page_is_a_campaign() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    campaign = Campaign.model_validate(tomllib.loads(text))
    workload = workloads.get(campaign.workload)
    parameters = workload.resolve(campaign.settings, DeviceFacts("cpu", "test", 8 << 30))
    assert {goal.axis for goal in campaign.axes} <= {a.name for a in workload.axes(parameters)}
    for planned in campaign.levers:
        lever = catalog.get(planned.lever)
        for setting in planned.candidates:
            lever.settings.check(lever.name, setting)


def test_every_state_and_subcommand_of_the_page_is_there() -> None:
    from experiments.campaign.view import LABELS
    from experiments.commands.campaign import campaign

    text = DOCS.read_text()
    for label in LABELS.values():
        assert f"| {label} |" in text
    names = {command.name for command in campaign.registered_commands}
    assert names == {"list", "status", "run", "close"}


def test_the_page_tells_of_the_row_that_was_drawn_on_a_cpu() -> None:
    row = CampaignRow.model_validate_json((RESULTS / "campaign-decode-cpu.json").read_text())
    assert (row.name, row.state) == ("decode-cpu", "TERMINAL")
    page = " ".join(DOCS.read_text().split())
    for lever in row.levers:
        if lever.outcome is not None:
            assert f"`{lever.lever}={lever.setting}` {lever.outcome}" in page
    ratios = [axis.ratio for axis in row.axes if axis.ratio is not None]
    assert len(ratios) == 4
    assert f"at {min(ratios):.2f} to {max(ratios):.2f} of PyTorch's own attention" in page
    markdown = (RESULTS / "campaign-decode-cpu.md").read_text()
    assert reports.markdown(row).strip() == markdown.strip()
