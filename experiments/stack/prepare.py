"""From a stack as typed to one that is fixed: levers, rows, parameters; every mistake is said here.

Nothing is measured and nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments import now, prepare
from experiments.environment import Device
from experiments.plan import make_plan
from experiments.prepare import Comparison, RunFacts
from experiments.ranks.needs import with_ranks
from experiments.registry.store import Registry
from experiments.requests import NO_ORACLE, Listener
from experiments.spec import NO_LEVER, AbSpec, LeverSetting
from experiments.stack.plan import (
    FEWEST_BLOCKS,
    Rows,
    leave_one_out,
    overlaps,
    waterfall,
    whole,
)
from experiments.stack.policy import policy_of
from experiments.stack.published import published, refuse_other_work
from experiments.stack.records import Row, StackSpec
from experiments.stack.requests import StackRequest
from experiments.values import Scalar, digest_of
from experiments.workloads import catalog as workloads
from experiments.workloads.base import Workload
from levers import catalog
from levers.base import OFF, Lever, claims
from levers.errors import BadSetting, LeverConflict, UsageError
from levers.policy import GatingPolicy, ParityClass
from levers.source import source_digest

NOTHING_TO_GATE = GatingPolicy(primaries=("*",), claims=ParityClass.BYTE_EXACT)
"""The policy of a stack without levers: its rows are the reference and the oracle."""

ON = "on"
"""The setting that a lever's name alone stands for, where the lever has it."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack that is resolved: what is measured, where, and under which policy as a whole."""

    spec: StackSpec
    workload: Workload
    device: Device
    policy: GatingPolicy
    axes: tuple[str, ...]

    def comparison(self, row: Row) -> Comparison:
        """One row against no lever at all, as the comparison that parity and processes work on."""
        spec = self.ab_spec(row.levers)
        named = row.levers or self.spec.levers
        last = catalog.get(named[-1].lever) if named else _any_lever()
        plan = make_plan(spec.seed, spec.looks[-1])
        return Comparison(spec, last, self.workload, self.device, plan, ())

    def ab_spec(self, levers: Sequence[LeverSetting]) -> AbSpec:
        """The levers as an A/B: the last one is tested, the others are its stack.

        What is on as a whole is what ships, so its tokens are compared with the models that are
        named for them; its parts are only what it is told from.
        """
        last = levers[-1] if levers else LeverSetting(lever=NO_LEVER, setting=OFF)
        return AbSpec(
            lever=last.lever,
            ref=OFF,
            cand=last.setting,
            workload=self.spec.workload,
            parameters=self.spec.parameters,
            device=self.spec.device,
            seed=self.spec.seed,
            stack=tuple(levers[:-1]),
            oracle=self.spec.oracle.oracle if self.spec.oracle else None,
            policy=self.policy,
            levers_source_digest=self.spec.levers_digest,
            interleaved=self.spec.interleaved,
            tokens_on=self.spec.tokens_on if set(levers) == set(self.spec.levers) else (),
        )


def resolved(
    request: StackRequest, device: Device, registry: Registry, listener: Listener
) -> Stack:
    """Resolve a request on a device.

    Raises:
        UsageError: a name, setting or number that cannot be used, levers that conflict, a first row
            or a published figure of other work; each names its cure.
    """
    workload = workloads.get(request.workload)
    resolve, ranks = workload.resolve, request.ranks
    parameters = with_ranks(workload, resolve(request.settings, device.facts), ranks)
    settings = {**request.settings, **request.first}
    first = with_ranks(workload, resolve(settings, device.facts), ranks)
    refuse_other_work(first, parameters, workload.name)
    if request.blocks < FEWEST_BLOCKS or request.blocks % 2:
        raise UsageError(
            f"{request.blocks} blocks cannot be balanced",
            cure=f"use an even number of at least {FEWEST_BLOCKS}: each second block is a mirror",
        )
    levers = typed(request.levers)
    if not levers and not request.bare:
        levers = default_on(registry, workload, parameters, device, listener)
    declared = [catalog.get(one.lever) for one in levers]
    facts = facts_of(workload, parameters, device)
    refuse(levers, declared, facts)
    return _fixed(request, workload, parameters, device, levers, declared)


def again(spec: StackSpec, device: Device) -> Stack:
    """The stack of a stored spec, to go on with it.

    Raises:
        UsageError: the source of a lever is another than when the stack began.
    """
    declared = [catalog.get(one.lever) for one in spec.levers]
    if (found := digest_of_levers(declared)) != spec.levers_digest:
        raise UsageError(
            f"a lever has changed since the stack began ({spec.levers_digest} -> {found})",
            cure="start a new stack: samples of two versions are never mixed",
        )
    workload = workloads.get(spec.workload)
    facts = facts_of(workload, spec.parameters, device)
    axes = tuple(axis.name for axis in workload.axes(spec.parameters))
    policy = policy_of(declared, facts) if declared else NOTHING_TO_GATE
    return Stack(spec, workload, device, policy, axes)


def facts_of(workload: Workload, parameters: Mapping[str, Scalar], device: Device) -> RunFacts:
    """What a lever may know before anything runs."""
    sites = workload.sites(parameters)
    return RunFacts(device.facts.device_type, workload.name, parameters, sites)


def typed(texts: Sequence[str], option: str = "--levers") -> tuple[LeverSetting, ...]:
    """The levers as typed with an option, ``name=setting``, in their order.

    A name alone means ``on`` where that is one of the lever's settings.

    Raises:
        UsageError: one has no setting, is off, or is named twice.
    """
    found = []
    for text in texts:
        name, equals, setting = (part.strip() for part in text.partition("="))
        lever = catalog.get(name)
        if not setting and (equals or ON not in lever.settings.names):
            raise BadSetting(
                f"{option} {text.strip()!r} has no setting",
                cure=f"write {lever.name}=SETTING, of {lever.settings.describe()}",
            )
        checked = lever.settings.check(lever.name, setting or ON)
        if checked == OFF:
            raise BadSetting(
                f"{lever.name}={OFF} adds nothing to a stack", cure=f"leave it out of {option}"
            )
        found.append(LeverSetting(lever=lever.name, setting=checked))
    names = [one.lever for one in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{name} is named twice", cure="give each lever one setting")
    return tuple(found)


def default_on(
    registry: Registry,
    workload: Workload,
    parameters: Mapping[str, Scalar],
    device: Device,
    listener: Listener,
) -> tuple[LeverSetting, ...]:
    """The levers that are default-ON in this scope, in the catalog's order.

    Raises:
        UsageError: there is none.
    """
    stack = now.stack(registry, device.driver)
    found = registry.default_on_set(workload.name, parameters, device.facts.kind, stack)
    for name, why in found.left_out:
        listener.on_warning(f"{name} is not in the stack: {why}")
    place = {entry.name: number for number, entry in enumerate(catalog.listed())}
    if not found.settings:
        raise UsageError(
            f"no lever is default-ON for {workload.name} with these parameters on this device",
            cure="name them with --levers a=on,b=on",
        )
    return tuple(sorted(found.settings, key=lambda one: place.get(one.lever, len(place))))


def refuse(levers: Sequence[LeverSetting], declared: Sequence[Lever], facts: RunFacts) -> None:
    """Refuse levers that have no place here, or that claim one site without saying so.

    Raises:
        UsageError: one of them does.
    """
    for one, lever in zip(levers, declared, strict=True):
        if facts.workload not in lever.workloads:
            raise LeverConflict(
                f"{lever.name} has no site in workload {facts.workload!r}",
                cure=f"it belongs to {' and '.join(lever.workloads)}",
            )
        for reason in prepare.unmet_by(lever, facts, one.setting):
            raise UsageError(f"{lever.name} cannot run here: {reason}", cure="leave it out")
    claims(declared)


def _fixed(
    request: StackRequest,
    workload: Workload,
    parameters: Mapping[str, Scalar],
    device: Device,
    levers: tuple[LeverSetting, ...],
    declared: Sequence[Lever],
) -> Stack:
    axes = tuple(axis.name for axis in workload.axes(parameters))
    facts = facts_of(workload, parameters, device)
    policy = policy_of(declared, facts) if declared else NOTHING_TO_GATE
    rows = Rows()
    (waterfall if request.stepwise else whole)(levers, rows)
    several = len(levers) > 1 or not request.stepwise
    left_out = leave_one_out(levers, rows) if request.leave_one_out and several else ()
    crossed = overlaps(levers, declared, rows) if request.pairs else ()
    oracle = prepare.oracle_of(workload, request.oracle or NO_ORACLE)
    named = " ".join(map(str, levers))
    seed = int(digest_of(f"{workload.name} {named}")[:7], 16)
    spec = StackSpec(
        workload=workload.name,
        parameters=dict(parameters),
        device=device.facts.device,
        seed=request.seed if request.seed is not None else seed,
        levers=levers,
        rows=_with_oracle(rows.all(), oracle),
        left_out=left_out,
        overlaps=crossed,
        blocks=request.blocks,
        budget_s=request.budget_s,
        interleaved=prepare.takes_turns(device, request.ranks),
        axis=_judged_axis(axes, policy, workload.name),
        claims=policy.claims,
        demands=policy.demanded,
        levers_digest=digest_of_levers(declared),
        published=published(request.published, levers, axes, parameters),
        stepwise=request.stepwise,
        oracle_mode=workload.oracle_mode(parameters, oracle) if oracle else "",
    )
    return Stack(spec, workload, device, policy, axes)


def _with_oracle(rows: tuple[Row, ...], oracle: str | None) -> tuple[Row, ...]:
    """The rows, and the oracle's as the last one."""
    if oracle is None:
        return rows
    return (*rows, Row(index=len(rows), levers=(), parts=("oracle",), oracle=oracle))


def _any_lever() -> Lever:
    """Stands in a comparison without any lever, of which none is ever enabled."""
    return next(entry.lever for entry in catalog.listed() if entry.lever is not None)


def _judged_axis(axes: Sequence[str], policy: GatingPolicy, workload: str) -> str:
    """The first primary axis of the last lever's policy."""
    for name in axes:
        if policy.is_primary(name):
            return name
    raise UsageError(
        f"the levers are judged on {', '.join(policy.primaries)}, which {workload} does not report",
        cure=f"it reports {', '.join(axes)}",
    )


def digest_of_levers(declared: Sequence[Lever]) -> str:
    """The digest of the sources of some levers, in their order."""
    return digest_of(" ".join(f"{lever.name} {source_digest(lever)}" for lever in declared))
