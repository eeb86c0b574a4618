"""What is asked: one A/B comparison, resolved and frozen before the first sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

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

    @property
    def device_type(self) -> str:
        """``cpu`` or ``cuda``."""
        return self.device.split(":")[0]

    @property
    def ranks(self) -> int:
        """Processes of one arm: a verdict at several ranks is none at one, so it is a parameter."""
        return ranks_of(self.parameters)

    @property
    def scope(self) -> str:
        """Workload and setting that a verdict is bound to (the device kind comes from the run)."""
        return f"{self.workload} {self.lever}={self.cand} vs {self.ref}"
