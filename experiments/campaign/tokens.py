"""The models with which a campaign compares tokens, lever by lever.

The list is one for the whole row, and not every lever can run on every model of it: such a pair is
left out and said. A lever that ships must have been compared on all the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments import token_models
from experiments.campaign.place import Place
from experiments.spec import AbSpec, LeverSetting, TokenModel
from experiments.stack.records import StackSpec


@dataclass(frozen=True, slots=True)
class Models:
    """The models for some levers, and those that are left out, each with the reason in words."""

    models: tuple[TokenModel, ...] = ()
    without: tuple[tuple[TokenModel, str], ...] = ()

    @property
    def left_out(self) -> tuple[str, ...]:
        """What is said of the models that are left out."""
        return tuple(text for _, text in self.without)

    @property
    def texts(self) -> tuple[str, ...]:
        """As they are typed."""
        return tuple(one.text for one in self.models)


def models_for(
    place: Place, subjects: Sequence[LeverSetting], beside: Sequence[LeverSetting] = ()
) -> Models:
    """The models on which these levers can be compared.

    Args:
        place: where the campaign is, with or without its device.
        subjects: the levers by which the arms differ.
        beside: the levers that are on in both arms.
    """
    if not subjects or not place.tokens_on:
        return Models()
    work = token_models.Work(
        place.workload, place.parameters, place.its_device, tuple(subjects), tuple(beside)
    )
    away = place.device is None
    judged = [
        (one, _stated(place, one, work) or token_models.obstacle(one, work, elsewhere=away))
        for one in place.tokens_on
    ]
    return Models(
        tuple(one for one, why in judged if not why),
        tuple((one, token_models.left_out(subjects, one, why)) for one, why in judged if why),
    )


def models_for_any(
    place: Place, candidates: Sequence[LeverSetting], beside: Sequence[LeverSetting]
) -> Models:
    """The models on which at least one setting of a lever can be compared.

    The others of it are without that model, each for itself: a selection says so.
    """
    found = [models_for(place, (one,), beside) for one in candidates]
    usable = {model.label for one in found for model in one.models}
    return Models(
        tuple(one for one in place.tokens_on if one.label in usable),
        tuple(pair for one in found for pair in one.without if pair[0].label not in usable),
    )


def compared_with(place: Place, on: Sequence[LeverSetting]) -> tuple[TokenModel, ...]:
    """The models on which the tokens of what ships are compared; all where nothing ships."""
    return models_for(place, on).models if on else place.tokens_on


def _stated(place: Place, model: TokenModel, work: token_models.Work) -> str:
    """The lever of whose line in the file the model is left out; empty where of none.

    The line speaks of its own candidates: another setting of the lever may well run there. One that
    is on in both arms can run there no more than one that they differ by.
    """
    for planned, lever in zip(place.campaign.levers, place.levers, strict=True):
        if not {model.name, model.model} & set(planned.tokens_not_on):
            continue
        settings = {lever.settings.check(lever.name, one) for one in planned.candidates}
        for one in (*work.subjects, *work.beside):
            if one.lever == planned.lever and one.setting in settings:
                both = ", which is on in both arms" if one in work.beside else ""
                return f"the campaign leaves it out for {one}{both}"
    return ""


def lacking(
    place: Place, spec: AbSpec | StackSpec, subjects: Sequence[LeverSetting]
) -> tuple[str, ...]:
    """The models of the campaign on which a run's tokens were not compared and could have been.

    More levers than are asked for may have been on in both arms only where they are on in the
    comparison itself: a captured graph, say. Weights that were quantised for the tokens alone are
    other weights.
    """
    beside = spec.stack if isinstance(spec, AbSpec) else ()
    there = set(beside) if isinstance(spec, AbSpec) else set(spec.levers)
    wanted = models_for(place, subjects, beside).models
    return tuple(
        one.label
        for one in wanted
        if not any(
            other.covers(one) and set(other.levers) - set(one.levers) <= there
            for other in spec.tokens_on
        )
    )
