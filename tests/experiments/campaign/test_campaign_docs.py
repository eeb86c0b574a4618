"""The example of docs/campaigns.md is a campaign that can be resolved."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from experiments.campaign.spec import Campaign
from experiments.workloads import catalog as workloads
from experiments.workloads.base import DeviceFacts
from levers import catalog

DOCS = Path(__file__).parents[3] / "docs" / "campaigns.md"


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
