"""What is asked: one A/B comparison, resolved and frozen before the first sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import SerializerFunctionWrapHandler, model_serializer

from experiments.values import FrozenMap, Scalar, Value
from levers.policy import GatingPolicy

NO_LEVER = "none"
"""The lever of runs whose two arms are the same: both are the reference."""

DEFAULT_LOOKS = (6, 9, 13, 18, 25, 40)
"""Numbers of pairs at which a decision is tried (design: statistics)."""


RANKS = "ranks"
"""The parameter that is there where an arm is more than one process: it belongs to the scope."""


def ranks_of(parameters: Mapping[str, Scalar]) -> int:
    """Processes of one arm, each with its own device and its own part of the global batch."""
    return int(parameters.get(RANKS) or 1)


ZERO = "zero"
"""The parameter that is there where the ranks divide their optimiser's state in another way than
PyTorch's own: like their number it belongs to the scope."""

DEEPSPEED = "deepspeed"
"""Its value where DeepSpeed does that, and the name of the distribution."""


def by_deepspeed(parameters: Mapping[str, Scalar]) -> bool:
    """Whether DeepSpeed's ZeRO-1 divides the optimiser's state among the ranks."""
    return parameters.get(ZERO) == DEEPSPEED


class LeverSetting(Value):
    """One lever at one setting, such as ``fa2_nsplits_cap=auto``."""

    lever: str
    setting: str

    def __str__(self) -> str:
        return f"{self.lever}={self.setting}"


NOT_KNOWN = "weights that are not known here"
"""In place of a digest, of a model whose weights nobody has looked at: no other model's is it."""


class TokenModel(Value):
    """A model with which the token check decodes its prompts, in place of the timed one.

    Attributes:
        parameters: of these decodes: the comparison's own with the model's, its digest among them.
        levers: on in both arms there, such as the one that quantises the weights.
    """

    parameters: FrozenMap[Scalar]
    levers: tuple[LeverSetting, ...] = ()

    @property
    def model(self) -> str:
        """The model as it was named."""
        return str(self.parameters["model"])

    @property
    def digest(self) -> str:
        """Of configuration, tokenizer and weights."""
        return str(self.parameters["model_digest"])

    @classmethod
    def unknown(cls, model: str, levers: tuple[LeverSetting, ...]) -> TokenModel:
        """A model of which nothing but the name is known."""
        return cls(parameters={"model": model, "model_digest": NOT_KNOWN}, levers=levers)

    @property
    def is_known(self) -> bool:
        """Whether its weights were looked at."""
        return self.digest != NOT_KNOWN

    @property
    def name(self) -> str:
        """The model's name, or its folder's."""
        return self.model.rstrip("/").rpartition("/")[2]

    @property
    def text(self) -> str:
        """As it is typed: ``shipped,mxfp4_weights=on``."""
        return ",".join((self.model, *map(str, self.levers)))

    @property
    def label(self) -> str:
        """As it is shown: ``shipped with mxfp4_weights=on``."""
        return f"{self.name} with {' '.join(map(str, self.levers))}" if self.levers else self.name

    def described(self, parameters: Mapping[str, Scalar]) -> str:
        """The label with the digest, and what of its parameters is not as in the comparison's."""
        own = ("model", "model_digest")
        other = (
            f"{name}={value}"
            for name, value in sorted(self.parameters.items())
            if name not in own and parameters.get(name) != value
        )
        return f"{self.label} ({', '.join((self.digest, *other))})"

    def covers(self, other: TokenModel) -> bool:
        """Whether what was compared with this model was compared with the other, too."""
        return self.digest == other.digest and set(other.levers) <= set(self.levers)


def told(models: Sequence[TokenModel], parameters: Mapping[str, Scalar]) -> str:
    """The models of the tokens in words, for every report; empty where there are none."""
    return "; ".join(one.described(parameters) for one in models)


def without_token_models(written: dict[str, Any]) -> dict[str, Any]:
    """A written spec without its key of the token models, where it has none."""
    if not written["tokens_on"]:
        written.pop("tokens_on")
    return written


class AbSpec(Value):
    """One A/B comparison: two settings of one lever in one scope, under a stated policy.

    Attributes:
        stack: the other levers that are on in both arms (the default-ON set of this scope).
        parameters: the workload's resolved parameters (defaults filled in, the model's digest too).
        oracle: name of the oracle measured in the same blocks, or None where no target needs one.
        budget_s: wall-clock limit of the measuring part, in seconds, or None.
        looks: planned looks, in pairs; the last is the maximum.
        policy: the bar, as the lever declared it for this device.
        levers_source_digest: digest of the lever's source files.
        interleaved: the two processes of a pair live at once and take turns (:mod:`.baton`).
        tokens_on: the models with which tokens are compared; none takes the timed one.
    """

    lever: str
    ref: str
    cand: str
    workload: str
    parameters: FrozenMap[Scalar]
    device: str
    seed: int
    looks: tuple[int, ...] = DEFAULT_LOOKS
    budget_s: float | None = None
    oracle: str | None = None
    stack: tuple[LeverSetting, ...] = ()
    policy: GatingPolicy
    levers_source_digest: str = ""
    sequential: Literal["group-sequential", "anytime"] = "group-sequential"
    interleaved: bool = False
    tokens_on: tuple[TokenModel, ...] = ()

    @model_serializer(mode="wrap")
    def _without_token_models(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Written as before there were any where there are none: digests stay what they were."""
        return without_token_models(handler(self))

    @property
    def device_type(self) -> str:
        """``cpu`` or ``cuda``."""
        return self.device.split(":")[0]

    @property
    def ranks(self) -> int:
        """Processes of one arm: a verdict at several ranks is none at one, so it is a parameter."""
        return ranks_of(self.parameters)

    @property
    def others(self) -> tuple[str, ...]:
        """The levers beside the tested one: on in both arms, or on a model of the tokens."""
        of_tokens = (one for model in self.tokens_on for one in model.levers)
        return tuple(sorted({one.lever for one in (*self.stack, *of_tokens)}))

    @property
    def scope(self) -> str:
        """Workload and setting that a verdict is bound to (the device kind comes from the run)."""
        return f"{self.workload} {self.lever}={self.cand} vs {self.ref}"
