"""All that is written of a campaign's row: Markdown and page."""

from __future__ import annotations

from pathlib import Path

from experiments import render
from experiments.campaign import files
from experiments.campaign.records import CampaignRow
from experiments.campaign.view import view
from experiments.home import Home


def folder(home: Home, name: str) -> Path:
    """Where the report of a campaign lies."""
    return home.root / files.FOLDER / name


def markdown(row: CampaignRow) -> str:
    """The row as Markdown, for a pull request or an MLflow page."""
    shown = view(row)
    return render.filled("campaign.md.j2", v=shown, icon=render.ICONS[shown.tone])


def page(row: CampaignRow) -> str:
    """The self-contained page."""
    return render.filled_html("campaign.html.j2", (), v=view(row))
