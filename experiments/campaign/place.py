"""Where a campaign is: its device, resolved parameters and stack; also where no device is."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from experiments import environment, token_models
from experiments.campaign.records import CampaignRow
from experiments.campaign.spec import Campaign
from experiments.environment import Device
from experiments.evidence import Scope
from experiments.prepare import RunFacts, oracle_of
from experiments.ranks.needs import with_ranks
from experiments.spec import TokenModel
from experiments.values import Scalar
from experiments.workloads import catalog as workloads
from experiments.workloads.base import DeviceFacts, Workload
from levers import catalog
from levers.base import OFF, Lever
from levers.errors import BadParameter, UnknownName, UsageError


@dataclass(frozen=True, slots=True)
class Place:
    """The scope of a campaign.

    Attributes:
        device: None where no such device is on this machine; ``absent`` says why.
        parameters: resolved; empty where nothing is known of them without the device.
        levers: the levers of the file, in its order.
        tokens_on: the models with which tokens are compared; without the device as the last row
            found them.
        known: the whole catalog, read once.
    """

    campaign: Campaign
    workload: Workload
    device: Device | None
    absent: str
    device_kind: str
    parameters: Mapping[str, Scalar]
    levers: tuple[Lever, ...]
    known: tuple[catalog.Entry, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    tokens_on: tuple[TokenModel, ...] = ()

    @property
    def driver(self) -> str:
        """Of the device; empty on a CPU."""
        return self.device.driver if self.device else ""

    @property
    def its_device(self) -> Device:
        """The device; where it is not here, no more than its type and its kind in the last row."""
        return self.device or Device(DeviceFacts(self.campaign.device, self.device_kind, 0), "")

    @property
    def facts(self) -> RunFacts:
        """What a lever may know before anything runs."""
        sites = self.workload.sites(self.parameters)
        return RunFacts(self.campaign.device, self.workload.name, self.parameters, sites)

    def scope(self, lever: str, setting: str) -> Scope:
        """The scope of one candidate's verdict."""
        return Scope(
            lever=lever,
            setting=setting,
            ref=OFF,
            workload=self.workload.name,
            parameters=dict(self.parameters),
            device_kind=self.device_kind,
        )


def place_of(campaign: Campaign, before: CampaignRow | None) -> Place:
    """Find the device and resolve the parameters; without a device, take them from the last row.

    The models of the tokens come from the same source: what was compared on other weights, or on
    fewer models, counts no more where the device is away.

    Raises:
        UsageError: a workload, lever, setting, axis, oracle or parameter that is not known.
    """
    workload = workloads.get(campaign.workload)
    known = catalog.listed()
    levers = _levers(campaign, known)
    device, absent = _device(campaign)
    if device is None:
        kind = before.device_kind if before else ""
        parameters = before.parameters if before else {}
        models = _models_of(campaign, before)
        return Place(
            campaign, workload, None, absent, kind, parameters, levers, known, tokens_on=models
        )
    resolved = workload.resolve(campaign.settings, device.facts)
    parameters = with_ranks(workload, resolved, 1)
    _check_axes(campaign, workload, parameters)
    versions = environment.stack_versions(device.driver)
    kind = device.facts.kind
    work = token_models.Work(workload, parameters, device, ())
    models = token_models.known(campaign.tokens_on, work)
    return Place(campaign, workload, device, "", kind, parameters, levers, known, versions, models)


def _models_of(campaign: Campaign, before: CampaignRow | None) -> tuple[TokenModel, ...]:
    """The models of the campaign with the weights that the last row found.

    Of one that it did not have no weights are known, so that nothing was compared on it.
    """
    if before is None or not before.parameters:
        return ()
    there = {(one.model, one.levers): one for one in before.token_models}
    named = (token_models.named(text) for text in campaign.tokens_on)
    return tuple(there.get(one) or TokenModel.unknown(*one) for one in named)


def _device(campaign: Campaign) -> tuple[Device | None, str]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        device = environment.find_device(campaign.device, visible=visible)
    except BadParameter as error:
        return None, error.message
    if campaign.device_kind not in device.facts.kind:
        return None, f"the campaign is of {campaign.device_kind}, and here is {device.facts.kind}"
    return device, ""


def _levers(campaign: Campaign, known: Sequence[catalog.Entry]) -> tuple[Lever, ...]:
    """The levers of the file with their candidates checked.

    Raises:
        UsageError: one is not in the catalog, takes no such setting, or is of another workload.
    """
    found = []
    for planned in campaign.levers:
        lever = _lever(campaign, planned.lever, known)
        for setting in planned.candidates:
            lever.settings.check(lever.name, setting)
        if campaign.workload not in lever.workloads:
            raise UsageError(
                f"campaign {campaign.name}: {lever.name} has no site in {campaign.workload}",
                cure=f"it belongs to {' and '.join(lever.workloads)}",
            )
        found.append(lever)
    return tuple(found)


def _lever(campaign: Campaign, name: str, known: Sequence[catalog.Entry]) -> Lever:
    """One lever of the file; a broken one says why it is."""
    names = [entry.name for entry in known]
    if name not in names:
        error = UnknownName("lever", name, names)
        cure = f"{error.cure}; a lever that nobody has built is a [[paths]] entry, unbuilt"
        raise UsageError(f"campaign {campaign.name}: {error.message}", cure=cure)
    found = known[names.index(name)].lever
    return catalog.get(name) if found is None else found


def _check_axes(campaign: Campaign, workload: Workload, parameters: Mapping[str, Scalar]) -> None:
    """Refuse a target of an axis that is not reported, and an oracle that the workload lacks."""
    names = [axis.name for axis in workload.axes(parameters)]
    for goal in campaign.axes:
        if goal.axis not in names:
            error = UnknownName("axis", goal.axis, names)
            raise UsageError(f"campaign {campaign.name}: {error.message}", cure=error.cure)
    try:
        for name in filter(None, (campaign.oracle, campaign.lever_oracle)):
            oracle_of(workload, name)
            workload.targets(parameters, name)  # refuses an argument that it cannot use
    except UnknownName as found:
        raise UsageError(f"campaign {campaign.name}: {found.message}", cure=found.cure) from found
