"""Campaign files: those that ship with the package, those of the home, and any path."""

from __future__ import annotations

import importlib.resources
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from experiments.campaign.spec import AnyCampaign, Campaign, RecordedCampaign
from experiments.home import Home
from experiments.values import digest_of, problem_of
from levers.errors import BadParameter, UnknownName

FOLDER = "campaigns"
"""Below the home: a user's own campaigns."""

SUFFIX = ".toml"


@dataclass(frozen=True, slots=True)
class CampaignFile:
    """A file and what it says; ``problem`` is why it cannot be used."""

    name: str
    path: str
    campaign: AnyCampaign | None = None
    digest: str = ""
    problem: str = ""


def shipped() -> Path:
    """The folder of the campaigns that come with the package."""
    return Path(str(importlib.resources.files("experiments") / FOLDER))


def known(home: Home) -> Mapping[str, Path]:
    """The campaigns by name: the home's own, then the shipped ones, of which none is hidden.

    Raises:
        BadParameter: one of the home has the name of a shipped one.
    """
    found = {path.stem: path for path in sorted(shipped().glob(f"*{SUFFIX}"))}
    for path in sorted((home.root / FOLDER).glob(f"*{SUFFIX}")):
        if path.stem in found:
            raise BadParameter(
                f"{path} has the name of a campaign that ships with levergate",
                cure="give it another name",
            )
        found[path.stem] = path
    return found


def listed(home: Home) -> tuple[CampaignFile, ...]:
    """All known campaigns; one that cannot be read is listed with the reason."""
    return tuple(_tried(path) for path in known(home).values())


def load(name: str, home: Home) -> CampaignFile:
    """A campaign by its name, or by the path of its file.

    Raises:
        UnknownName: there is none of that name.
        BadParameter: the file cannot be read, or says something that cannot be used.
    """
    if name.endswith(SUFFIX):
        return read(Path(name))
    paths = known(home)
    if name not in paths:
        raise UnknownName("campaign", name, paths)
    return read(paths[name])


def read(path: Path) -> CampaignFile:
    """The campaign in a file, whose name is the file's.

    Raises:
        BadParameter: what is wrong in it, and where.
    """
    try:
        text = path.read_text(encoding="utf-8")
        values: dict[str, Any] = tomllib.loads(text)
    except OSError as error:
        cure = "name a campaign (levergate campaign list) or its file"
        raise BadParameter(f"cannot read {path}: {error.strerror}", cure=cure) from error
    except ValueError as error:
        raise BadParameter(f"{path} is no TOML: {error}", cure="correct that line") from error
    found = _checked(path, values)
    if found.name != path.stem:
        raise BadParameter(
            f"{path} says name = {found.name!r}", cure=f"call it {found.name}{SUFFIX}"
        )
    return CampaignFile(found.name, str(path), found, digest_of(text))


def _checked(path: Path, values: dict[str, Any]) -> AnyCampaign:
    kind = values.get("kind", "measured")
    if kind not in ("measured", "recorded"):
        raise BadParameter(f"{path}: kind = {kind!r}", cure="write measured or recorded")
    model = RecordedCampaign if kind == "recorded" else Campaign
    try:
        return model.model_validate(values)
    except ValidationError as error:
        cure = f"docs/campaigns.md has an example, and so is {shipped() / 'decode-cpu.toml'}"
        raise BadParameter(f"{path}: {problem_of(error)}", cure=cure) from error


def _tried(path: Path) -> CampaignFile:
    try:
        return read(path)
    except BadParameter as error:
        return CampaignFile(path.stem, str(path), problem=error.message)
