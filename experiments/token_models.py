"""The models with which tokens are compared, in place of the timed one (``--tokens-on``).

Speed is measured at sizes whose weights are often random, and random weights carry no claim about
tokens. So the token check of the same comparison decodes its prompts with trained models: named one
by one, each with the levers that are on in both arms there (``shipped,mxfp4_weights=on`` is the
quantised one).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from experiments.environment import Device
from experiments.prepare import Comparison, RunFacts, unmet_by
from experiments.spec import AbSpec, LeverSetting, TokenModel
from experiments.stack.prepare import facts_of, typed
from experiments.stack.records import StackSpec
from experiments.values import Scalar
from experiments.workloads.base import DecodesTokens, LoadsWeights, Workload
from levers import catalog
from levers.base import claims
from levers.errors import BadParameter, LeverConflict, UsageError

OPTION = "--tokens-on"


@dataclass(frozen=True, slots=True)
class Work:
    """What the models are to decode for.

    Attributes:
        subjects: the levers by which the arms differ, at each of their settings.
        beside: the levers that are on in both arms of the comparison anyway.
    """

    workload: Workload
    parameters: Mapping[str, Scalar]
    device: Device
    subjects: tuple[LeverSetting, ...]
    beside: tuple[LeverSetting, ...] = ()

    @classmethod
    def of(cls, comparison: Comparison) -> Work:
        """Of one lever at two settings."""
        spec = comparison.spec
        subjects = (spec.ref, spec.cand)
        return cls(
            comparison.workload,
            spec.parameters,
            comparison.device,
            tuple(LeverSetting(lever=spec.lever, setting=one) for one in subjects),
            spec.stack,
        )


def added(comparison: Comparison, texts: Sequence[str]) -> Comparison:
    """The comparison with its tokens compared on these models; as it is where none is named.

    Raises:
        UsageError: one cannot be used; see :func:`asked`.
    """
    if not texts:
        return comparison
    found = {"tokens_on": asked(texts, Work.of(comparison))}
    return replace(comparison, spec=comparison.spec.model_copy(update=found))


def added_to_each(
    comparisons: Sequence[Comparison], texts: Sequence[str]
) -> tuple[tuple[Comparison, tuple[str, ...]], ...]:
    """Settings of one lever in one scope, each with the models on which it can be compared.

    A model on which one of them cannot run is left out for that one alone; beside each comparison
    stands what it lacks, in words.

    Raises:
        UsageError: a model is unknown, random or named twice, or no setting can run on it.
    """
    if not texts:
        return tuple((one, ()) for one in comparisons)
    works = [Work.of(one) for one in comparisons]
    models = known(texts, works[0])
    why = [[obstacle(model, work) for model in models] for work in works]
    for model, reasons in zip(models, zip(*why, strict=True), strict=True):
        if all(reasons):
            raise _refused(model, reasons[0])
    return tuple(
        _with_models(one, tuple(zip(models, reasons, strict=True)))
        for one, reasons in zip(comparisons, why, strict=True)
    )


def _with_models(
    comparison: Comparison, judged: Sequence[tuple[TokenModel, str]]
) -> tuple[Comparison, tuple[str, ...]]:
    spec = comparison.spec
    subject = (LeverSetting(lever=spec.lever, setting=spec.cand),)
    usable = tuple(model for model, why in judged if not why)
    lacking = tuple(left_out(subject, model, why) for model, why in judged if why)
    return replace(comparison, spec=spec.model_copy(update={"tokens_on": usable})), lacking


def left_out(subjects: Sequence[LeverSetting], model: TokenModel, why: str) -> str:
    """That some levers are not compared on a model, in words."""
    return f"tokens of {' + '.join(map(str, subjects))} are not compared on {model.label}: {why}"


def _refused(model: TokenModel, why: str) -> UsageError:
    return LeverConflict(
        f"{OPTION} {model.text}: {why}",
        cure=f"leave {model.text} out, or name another model in its place",
    )


def asked(texts: Sequence[str], work: Work) -> tuple[TokenModel, ...]:
    """The models as typed, each checked against the levers that are compared on it.

    Raises:
        UsageError: one is unknown, random or named twice, or a lever cannot run on it.
    """
    found = known(texts, work)
    for one in found:
        if reason := obstacle(one, work):
            raise _refused(one, reason)
    return found


def known(texts: Sequence[str], work: Work) -> tuple[TokenModel, ...]:
    """The models as typed, whether or not the levers can run on them.

    Raises:
        UsageError: one is unknown, random or named twice.
    """
    found = tuple(_model(text, work) for text in texts)
    for number, one in enumerate(found):
        for other in found[:number]:
            if one.covers(other) and other.covers(one):
                raise UsageError(
                    f"{OPTION} {one.text} is {other.text} once more (weights {one.digest})",
                    cure="name each model once",
                )
            if one.label == other.label:
                raise UsageError(
                    f"{OPTION}: two models are called {one.label}: {other.text} and {one.text}",
                    cure="give one of the folders another name, by which reports show them",
                )
    return found


def named(text: str) -> tuple[str, tuple[LeverSetting, ...]]:
    """The model and the levers of one text, ``model,lever=setting``.

    Raises:
        UsageError: a lever or setting that is not known, is off, or is named twice.
    """
    model, *levers = (part.strip() for part in text.split(","))
    return model, typed(levers, OPTION)


def _model(text: str, work: Work) -> TokenModel:
    workload = work.workload
    model, levers = named(text)
    if not isinstance(workload, DecodesTokens):
        raise BadParameter(
            f"{workload.name} decodes no tokens that could be compared on {model!r}",
            cure=f"leave out {OPTION}",
        )
    parameters = workload.token_parameters(work.parameters, model, work.device.facts)
    return TokenModel(parameters=dict(parameters), levers=levers)


def obstacle(model: TokenModel, work: Work, *, elsewhere: bool = False) -> str:
    """Why the arms cannot be compared on this model; empty where they can.

    Args:
        model: whether it is known or not.
        work: what it is to decode for.
        elsewhere: this machine is not the one that measures. What a lever lacks with the timed
            model as well, such as a package, is then this machine's lack.
    """
    subjects = {one.lever for one in work.subjects}
    settings = {one.lever: one.setting for one in work.beside}
    for one in model.levers:
        if one.lever in subjects:
            return f"{one.lever} is what the arms differ by, and cannot be on in both"
        if settings.get(one.lever, one.setting) != one.setting:
            return f"{one.lever}={settings[one.lever]} is on in both arms, and not {one.setting}"
    on = (*model.levers, *(one for one in work.beside if one not in model.levers))
    timed = facts_of(work.workload, work.parameters, work.device)
    own = facts_of(work.workload, model.parameters, work.device) if model.is_known else timed
    unmet = _unmet((*on, *work.subjects), own, timed if elsewhere else None)
    return unmet or _claimed((*on, *work.subjects))


def _unmet(levers: Sequence[LeverSetting], facts: RunFacts, timed: RunFacts | None) -> str:
    """The first lever that cannot run with the model's parameters, and why.

    What it says of the timed model's, too, is left out where these are given.
    """
    for one in levers:
        lever = catalog.get(one.lever)
        if facts.workload not in lever.workloads:
            return f"{one.lever} has no site in workload {facts.workload!r}"
        known = unmet_by(lever, timed, one.setting) if timed is not None else ()
        for reason in unmet_by(lever, facts, one.setting):
            if reason not in known:
                return f"{one} cannot run there: {reason.removeprefix(f'{one.setting}: ')}"
    return ""


def _claimed(levers: Sequence[LeverSetting]) -> str:
    """Which two levers claim one site without saying so."""
    try:
        claims([catalog.get(name) for name in dict.fromkeys(one.lever for one in levers)])
    except LeverConflict as conflict:
        return conflict.message
    return ""


def refuse_changed(
    spec: AbSpec | StackSpec, workload: Workload, device: Device, *, tokens: bool = True
) -> None:
    """Refuse to go on where the weights of a model are no longer those that the run began with.

    Args:
        spec: as it was begun.
        workload: of the spec.
        device: where it goes on.
        tokens: whether the models of the tokens are still to decode; the timed one always is.

    Raises:
        BadParameter: they have changed, or are no longer there.
    """
    if isinstance(workload, LoadsWeights):
        then, now = str(spec.parameters["model_digest"]), workload.weights_digest(spec.parameters)
        _refuse_other(str(spec.parameters["model"]), then, now)
    work = Work(workload, spec.parameters, device, ())
    for one in spec.tokens_on if tokens else ():
        _refuse_other(one.model, one.digest, _model(one.text, work).digest)


def _refuse_other(model: str, then: str, now: str) -> None:
    if now != then:
        raise BadParameter(
            f"the weights of {model} have changed since the run began ({then} -> {now})",
            cure="start a new run: two models are never mixed in one",
        )
