"""The ways in which the prompts of the token check are decoded: alone, under load, eagerly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from experiments.parity.arms import Arms
from experiments.parity.bench import Bench
from experiments.parity.limits import concurrencies
from experiments.spec import LeverSetting
from experiments.values import Scalar

FEWEST_REPEATED = 4

NO_LOADS: Mapping[str, int | None] = {}


@dataclass(frozen=True, slots=True)
class Mode:
    """One way of decoding the prompts: alone, under load, or without the captured graph.

    Attributes:
        model: the model in words where it is not the timed one.
        levers: on in both arms with this model.
    """

    name: str
    arguments: Mapping[str, Any]
    parameters: Mapping[str, Scalar]
    model: str = ""
    levers: tuple[LeverSetting, ...] = ()

    def on(self, arms: Arms) -> Arms:
        """The arms with this model's levers in both; one that both have is there once."""
        there = {one.lever for one in (*arms.ref, *arms.cand)}
        more = tuple(one for one in self.levers if one.lever not in there)
        return Arms((*more, *arms.ref), (*more, *arms.cand), arms.name)


def modes(bench: Bench, loads: Mapping[str, int | None] = NO_LOADS) -> tuple[Mode, ...]:
    """Every mode of each model that is named for the tokens, or of the timed one.

    ``loads`` are concurrencies by the models' labels: a load above one takes the place of the
    largest, and a model of which there is none is left out.
    """
    if not bench.spec.tokens_on:
        return modes_of(bench, bench.spec.parameters)
    return tuple(
        replace(mode, name=f"{one.label}, {mode.name}", model=one.label, levers=one.levers)
        for one in bench.spec.tokens_on
        if (load := loads.get(one.label, 1)) is not None
        for mode in modes_of(bench, one.parameters, load, brief=loads.get(one.label) != 1)
    )


def modes_of(
    bench: Bench, parameters: Mapping[str, Scalar], load: int = 1, *, brief: bool = False
) -> tuple[Mode, ...]:
    """Alone and at a load (usually the largest); also eager where the workload captures a graph.

    ``brief`` says that the lever also acts under load, where streams are compared whole.
    """
    most = load if load > 1 else max(concurrencies(parameters), default=1)
    some = _briefly(bench) if brief and most > 1 else {}
    alone = Mode("alone", {**_want(bench), **some, "concurrency": 1}, parameters)
    loaded = Mode("loaded", {**_want(bench), "concurrency": most}, parameters)
    found = [alone, loaded] if most > 1 else [alone]
    if parameters.get("graph") == "on":
        found.append(replace(found[-1], name="eager", parameters={**parameters, "graph": "off"}))
    return tuple(found)


def _want(bench: Bench) -> dict[str, Any]:
    return {"want": "tokens", "prompts": bench.limits.prompts}


def _briefly(bench: Bench) -> dict[str, int]:
    """How long a stream alone is, where others under load are longer."""
    tokens = bench.limits.alone_tokens
    return {} if tokens is None else {"max_tokens": tokens}


def repeated(bench: Bench, mode: Mode) -> Mode:
    """What the reference decodes a second time: all prompts where bits matter, else a quarter.

    A stream that was not repeated gets no allowance for the reference's own divergences.
    """
    if bench.strict or bench.demands_bits:
        return mode
    some = min(bench.limits.prompts, max(FEWEST_REPEATED, bench.limits.prompts // 4))
    return replace(mode, arguments={**mode.arguments, "prompts": some})
