"""What a workload is: a torch-free description, and a session for the measured process.

The description resolves parameters, names axes and targets and estimates needs. ``opener`` names
the function that builds the session, as ``module:function``, imported in the measured process only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from experiments.values import Scalar
from levers.base import Site
from levers.policy import Axis

if TYPE_CHECKING:
    from experiments.tasks import Measurement, Outputs


DIGESTS_VARIABLE = "LEVERGATE_DIGESTS"
"""Names the folder in which measured processes find the digests of large files again."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The device as the parent knows it, without torch."""

    device: str
    kind: str
    memory_bytes: int
    sm_count: int = 0
    compute_capability: tuple[int, int] = (0, 0)

    @property
    def device_type(self) -> str:
        """``cpu`` or ``cuda``."""
        return self.device.split(":")[0]


@dataclass(frozen=True, slots=True)
class Target:
    """The value that an axis must reach.

    ``oracle``: at least ``ratio`` of the oracle's value (of either direction, > 1 is better).
    ``roofline``: at least ``ratio`` of the value that the device's measured ceilings allow, which
    the oracle run reports for this axis as if it were an implementation of the work.
    """

    axis: str
    kind: Literal["oracle", "roofline"]
    ratio: float = 1.0

    def describe(self, oracle: str) -> str:
        """``>= 1.00 x sdpa``."""
        return f">= {self.ratio:.2f} x {oracle}"


@dataclass(frozen=True, slots=True)
class Needs:
    """What a run will take, estimated before it starts.

    ``time_limit_s`` is when a process counts as hung; 0 leaves it far beyond the estimate.
    """

    device_memory_bytes: int
    host_memory_bytes: int
    disk_bytes: int
    seconds_per_sample: float
    time_limit_s: float = 0.0


class Workload(Protocol):
    """The torch-free half of a workload."""

    name: str
    summary: str
    opener: str
    oracles: tuple[str, ...]
    checks: tuple[str, ...]

    def resolve(self, requested: Mapping[str, str], device: DeviceFacts) -> Mapping[str, Scalar]:
        """All parameters with defaults filled in and the model's digest.

        Raises:
            BadParameter: an unknown parameter, a value out of range, a folder that holds no model.
        """

    def axes(self, parameters: Mapping[str, Scalar]) -> tuple[Axis, ...]:
        """The axes that a sample carries with these parameters."""

    def targets(self, parameters: Mapping[str, Scalar], oracle: str | None) -> tuple[Target, ...]:
        """The targets of the axes; an axis without one is wanted."""

    def sites(self, parameters: Mapping[str, Scalar]) -> tuple[str, ...]:
        """The names of the sites that the session will expose."""

    def needs(self, parameters: Mapping[str, Scalar], device: DeviceFacts) -> Needs:
        """Memory, disk and time that one sample takes."""

    def oracle_mode(self, parameters: Mapping[str, Scalar], oracle: str) -> str:
        """How the oracle must run to be in its users' mode (``eager-sdpa``, ``compiled``)."""

    def impossible(
        self, parameters: Mapping[str, Scalar], device: DeviceFacts
    ) -> Mapping[str, float]:
        """Per axis, the value that no implementation can beat on this device; empty if unknown."""


@runtime_checkable
class DecodesTokens(Protocol):
    """What a workload offers whose tokens can be compared on other models than the timed one."""

    def token_parameters(
        self, parameters: Mapping[str, Scalar], model: str, device: DeviceFacts
    ) -> Mapping[str, Scalar]:
        """The parameters of a comparison with those of another model, its digest among them.

        Raises:
            BadParameter: there is no such model, its weights are random, or it cannot decode the
                prompts.
        """


@runtime_checkable
class DecodesInDouble(Protocol):
    """What a workload says whose session also decodes in fp64.

    Its ``outputs`` answer ``want="truth"`` as they do ``want="tokens"``: greedy streams of the same
    prompts by the same stored weights, in fp64 and with every operation in its original form.
    """

    decodes_in_double: bool


@runtime_checkable
class LoadsWeights(Protocol):
    """What a workload offers whose processes read weights that may change on disk."""

    def weights_digest(self, parameters: Mapping[str, Scalar]) -> str:
        """The digest of what a process with these parameters would load now.

        Raises:
            BadParameter: it is no longer there.
        """


def unpaced() -> None:
    """Take no turns: no other process shares the device."""


class Session(Protocol):
    """The torch half: one built workload inside one measured process.

    ``pace`` is called between pieces of timed work of about a tenth of a second, outside every
    timed stretch: it is where the two processes of a pair take turns.
    """

    sites: Mapping[str, Site]
    pace: Callable[[], None]

    def warm_up(self) -> None:
        """Compile, autotune, capture, fill caches: all that must not be timed."""

    def measure(self) -> Measurement:
        """The timed work of one sample."""

    def exercise(self) -> None:
        """The untimed witness pass: run each axis's work once, so that the sites observe it."""

    def outputs(self, arguments: Mapping[str, Any]) -> Outputs:
        """The parity pass; ``arguments['want']`` says: tokens, gaps, losses, gradients, digests.

        ``tokens`` comes with ``prompts`` and ``concurrency``; ``gaps`` with these and ``prefixes``
        (prompt index, prefix token ids, candidate token id); ``losses`` and ``gradients`` may come
        with ``reorder`` (k > 0: the same work with its reductions in the k-th other valid order).
        """


class Opener(Protocol):
    """Builds a session; ``implementation`` is ``engine`` or ``oracle:<name>``."""

    def __call__(
        self, parameters: Mapping[str, Scalar], device: str, seed: int, implementation: str
    ) -> Session:
        """Load the model and the inputs; no timed work."""
