"""From a request to a comparison that is fixed: names checked, defaults filled in, the bar set.

Nothing is measured and nothing is written here; every mistake of the request is raised here, before
a run exists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.candidates import usual
from experiments.environment import Device
from experiments.plan import Plan, make_plan
from experiments.ranks.needs import with_ranks
from experiments.requests import NO_ORACLE, AbRequest
from experiments.spec import DEFAULT_LOOKS, AbSpec, LeverSetting
from experiments.values import Scalar, digest_of
from experiments.workloads import catalog as workloads
from experiments.workloads.base import Target, Workload
from levers import catalog
from levers.base import OFF, Lever, claims
from levers.errors import BadParameter, BadSetting, LeverConflict, UnknownName, UsageError
from levers.source import source_digest

FEWEST_PAIRS = DEFAULT_LOOKS[0]
"""No look is planned before this many pairs (design: statistics)."""

OWN_OPTIONS = ("size", "model")
"""Parameters of some workloads that have an option of their own."""

MOST_PAIRS = 10 * DEFAULT_LOOKS[-1]
"""Ten times the default plan sees effects of a third of the size; longer samples do it sooner."""

LOOKS_GROW = 1.5
"""Beyond the default plan each look comes at that many times the pairs, as within it."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a lever may know before anything runs (:class:`levers.base.Facts`)."""

    device_type: str
    workload: str
    parameters: Mapping[str, Any]
    sites: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A request that is resolved: what is compared, where, in which order and against what bar."""

    spec: AbSpec
    lever: Lever
    workload: Workload
    device: Device
    plan: Plan
    unmet: tuple[str, ...]

    @property
    def targets(self) -> tuple[Target, ...]:
        """The targets of the primary axes."""
        stated = self.workload.targets(self.spec.parameters, self.spec.oracle)
        return tuple(one for one in stated if self.spec.policy.is_primary(one.axis))


def looks_up_to(pairs: int | None) -> tuple[int, ...]:
    """The planned looks of a run of at most ``pairs`` pairs.

    Raises:
        UsageError: fewer pairs than the first look needs, or more than a run takes.
    """
    if pairs is None:
        return DEFAULT_LOOKS
    if pairs < FEWEST_PAIRS:
        raise UsageError(
            f"{pairs} pairs cannot give a verdict", cure=f"use --pairs {FEWEST_PAIRS} or more"
        )
    if pairs > MOST_PAIRS:
        raise UsageError(
            f"{pairs} pairs are more than the {MOST_PAIRS} that one run takes",
            cure=f"use --pairs {MOST_PAIRS} or less, and longer samples (more steps or tokens) for "
            "an effect that small; levergate plan says what it takes",
        )
    looks = list(DEFAULT_LOOKS)
    while looks[-1] < pairs:
        looks.append(math.ceil(looks[-1] * LOOKS_GROW))
    return (*(look for look in looks if look < pairs), pairs)


def workload_of(lever: Lever, name: str | None) -> Workload:
    """The workload that was asked for, or the lever's first.

    Raises:
        UnknownName: there is no such workload.
        LeverConflict: the lever has no site in it.
    """
    workload = workloads.get(name or lever.workloads[0])
    if workload.name not in lever.workloads:
        raise LeverConflict(
            f"{lever.name} has no site in workload {workload.name!r}",
            cure=f"use --workload {' or '.join(lever.workloads)}",
        )
    return workload


def oracle_of(workload: Workload, asked: str | None) -> str | None:
    """The oracle to measure: the one asked for, the workload's first, or none.

    A name of the workload that ends with a colon takes an argument, which the workload reads.

    Raises:
        UnknownName: the workload has no such oracle.
    """
    if asked == NO_ORACLE:
        return None
    if asked is None:
        return workload.oracles[0] if workload.oracles else None
    with_argument = tuple(name for name in workload.oracles if name.endswith(":"))
    if asked not in workload.oracles and not asked.startswith(with_argument):
        raise UnknownName("oracle", asked, (*workload.oracles, NO_ORACLE))
    return asked


def settings_of(lever: Lever, request: AbRequest) -> tuple[str, str]:
    """Both settings in canonical form.

    Raises:
        BadSetting: one is out of range, both are the same, or the candidate is not named.
    """
    ref = lever.settings.check(lever.name, request.ref)
    cand = lever.settings.check(lever.name, request.cand or usual(lever))
    if ref == cand:
        raise BadSetting(
            f"both arms are {lever.name}={ref}: nothing would be compared",
            cure=f"give two of {lever.settings.describe()}",
        )
    return ref, cand


def _share_sites(lever: Lever, others: Sequence[LeverSetting]) -> None:
    """Check that the lever may share its sites with those that are on in both arms.

    Raises:
        LeverConflict: it may not; nobody typed the other one, so the message says why it is on.
    """
    for one in others:
        try:
            claims([catalog.get(one.lever), lever])
        except LeverConflict as error:
            raise LeverConflict(
                f"{error.message}, and {one.lever}={one.setting} ships ON here in both arms",
                cure=f"{error.cure}; or switch it off: levergate override {one.lever} --state off",
            ) from error
    claims([*(catalog.get(one.lever) for one in others), lever])


def compare(
    request: AbRequest, device: Device, stack: tuple[LeverSetting, ...] | None = None
) -> Comparison:
    """Resolve a request on a device.

    Args:
        request: as typed.
        device: where it runs.
        stack: the other levers that are on in both arms.

    Raises:
        UsageError: a name, setting, parameter or number that cannot be used; each names its cure.
    """
    lever = catalog.get(request.lever)
    ref, cand = settings_of(lever, request)
    workload = workload_of(lever, request.workload)
    resolved = _resolved(workload, request.settings, device)
    parameters = with_ranks(workload, resolved, request.ranks)
    facts = RunFacts(
        device.facts.device_type, workload.name, parameters, workload.sites(parameters)
    )
    others = tuple(one for one in stack or () if one.lever != lever.name)
    _share_sites(lever, others)
    spec = AbSpec(
        lever=lever.name,
        ref=ref,
        cand=cand,
        workload=workload.name,
        parameters=dict(parameters),
        device=device.facts.device,
        seed=_seed(request, lever, workload, ref, cand),
        looks=looks_up_to(request.max_pairs),
        budget_s=request.budget_s,
        oracle=oracle_of(workload, request.oracle),
        stack=others,
        policy=lever.policy(facts),
        levers_source_digest=source_digest(lever),
        interleaved=takes_turns(device, request.ranks),
        sequential=request.sequential,
    )
    _check_axes(spec, workload, parameters)
    workload.targets(parameters, spec.oracle)  # refuses an oracle's argument that it cannot use
    return _with_plan(spec, lever, workload, device, unmet_by(lever, facts, ref, cand))


def _resolved(workload: Workload, asked: Mapping[str, str], device: Device) -> Mapping[str, Scalar]:
    """The workload's parameters; an option that it does not have is named as it was typed."""
    try:
        return workload.resolve(asked, device.facts)
    except UnknownName as unknown:
        if unknown.name not in OWN_OPTIONS or unknown.name not in asked:
            raise
        raise UsageError(
            f"{workload.name} has no --{unknown.name}",
            cure=f"leave it out; its parameters for --set are {', '.join(unknown.known)}",
        ) from unknown


def _seed(request: AbRequest, lever: Lever, workload: Workload, ref: str, cand: str) -> int:
    """The seed asked for, else one of the comparison's own.

    The same comparison then works on the same inputs, so that a passed parity check is found again
    by its digest; another comparison gets another order.
    """
    if request.seed is not None:
        return request.seed
    return usual_seed(lever.name, ref, cand, workload.name)


def usual_seed(lever: str, ref: str, cand: str, workload: str) -> int:
    """The seed of a comparison where none is asked for."""
    return int(digest_of(f"{lever} {ref} {cand} {workload}")[:7], 16)


def takes_turns(device: Device, ranks: int = 1) -> bool:
    """Whether the two processes of a pair live at once: on a CPU, where slow moments are short.

    Several ranks do not: all of an arm's would have to hold the turn together.
    """
    return not device.is_cuda and ranks == 1


def again(spec: AbSpec, device: Device) -> Comparison:
    """The comparison of a stored spec, to go on with it or to decide it again.

    Raises:
        BadParameter: the lever's source is another than when the run began.
    """
    lever, workload = catalog.get(spec.lever), workloads.get(spec.workload)
    refuse_edited(spec)
    return _with_plan(spec, lever, workload, device, ())


def refuse_edited(spec: AbSpec) -> None:
    """Refuse a lever that was edited after the run began, while it was interrupted or waited.

    Raises:
        BadParameter: its source is another than the spec says.
    """
    now = source_digest(catalog.get(spec.lever))
    if now != spec.levers_source_digest:
        raise BadParameter(
            f"{spec.lever} has changed since the run began ({spec.levers_source_digest} -> {now})",
            cure="start a new run: what is stored of this one is of the lever as it was",
        )


def unmet_by(lever: Lever, facts: RunFacts, *settings: str) -> tuple[str, ...]:
    """Why the lever cannot run here, over the settings of both arms; ``off`` runs anywhere."""
    missing = [site for site in lever.touches if site not in facts.sites]
    reasons = [f"the workload has no site {site!r} with these parameters" for site in missing]
    for setting in settings:
        if setting != OFF:
            reasons += [f"{setting}: {reason}" for reason in lever.unmet(facts, setting)]
    return tuple(reasons)


def _check_axes(spec: AbSpec, workload: Workload, parameters: Mapping[str, Scalar]) -> None:
    """A policy whose primaries the workload does not report could never be decided."""
    names = [axis.name for axis in workload.axes(parameters)]
    if not any(spec.policy.is_primary(name) for name in names):
        raise UsageError(
            f"{spec.lever} is decided on {', '.join(spec.policy.primaries)}, which "
            f"{workload.name} does not report with these parameters",
            cure=f"it reports {', '.join(names)}",
        )


def _with_plan(
    spec: AbSpec, lever: Lever, workload: Workload, device: Device, unmet: tuple[str, ...]
) -> Comparison:
    plan = make_plan(spec.seed, spec.looks[-1], spec.oracle is not None)
    return Comparison(spec, lever, workload, device, plan, unmet)
