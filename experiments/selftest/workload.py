"""The torch-free half of the self-test's workload: a small product, its layout, and its read-out.

On the ``wall`` clock a step costs real work (a number of products). On the ``virtual`` clock it
costs what the launch says, with noise drawn from the system, so that an effect of 3 % is known.
"""

from __future__ import annotations

from collections.abc import Mapping

from experiments.values import Scalar
from experiments.workloads.base import DeviceFacts, Needs, Target
from levers.errors import BadParameter, UnknownName
from levers.policy import Axis

PRODUCT = "selftest.product"
LAYOUT = "selftest.layout"
READ = "selftest.read"
SITES = (PRODUCT, LAYOUT, READ)

RATE, STEP, MEMORY = "selftest/steps_s", "selftest/step_ms", "selftest/scratch_bytes"

DEFAULTS: Mapping[str, Scalar] = {
    "scope": "default",
    "size": 48,
    "steps": 1600,
    "threads": 1,
    "clock": "wall",
    "noise": 0.004,
    "inputs": "normal",
    "scratch": "some",
    "limit_s": 60,
}
"""Parameters: ``scope`` keeps comparisons apart, ``inputs`` may hold a NaN, ``scratch`` may be more
than any machine has (in the reference alone), ``limit_s`` is when a process counts as hung. The
matrices fit into a core's first cache, so that neighbours on the machine disturb them little; the
shortest of 1600 steps (half a second) scatters by 0.4 % on a busy machine, that of 200 by 9 %."""

CHOICES = {
    "clock": ("wall", "virtual"),
    "inputs": ("normal", "nan"),
    "scratch": ("some", "huge"),
}


class SelftestWorkload:
    """Steps of milliseconds at three sites."""

    name = "selftest"
    summary = "a small matrix product with planted faults"
    opener = "experiments.selftest.session:open_session"
    oracles = ("slower",)
    checks = ("op", "determinism", "smoke", "rollback", "stack")

    def resolve(self, requested: Mapping[str, str], device: DeviceFacts) -> Mapping[str, Scalar]:
        """All parameters with their defaults.

        Raises:
            UnknownName: a parameter that it does not have.
            BadParameter: a value of the wrong kind, or another device than the CPU.
        """
        if device.device_type != "cpu":
            raise BadParameter("the self-test runs on the CPU", cure="use --device cpu")
        for name in requested:
            if name not in DEFAULTS:
                raise UnknownName("parameter of selftest", name, DEFAULTS)
        return {**DEFAULTS, **{name: _typed(name, text) for name, text in requested.items()}}

    def axes(self, parameters: Mapping[str, Scalar]) -> tuple[Axis, ...]:
        """Speed twice, and the bytes of scratch memory, which repeat exactly."""
        del parameters
        return (
            Axis(RATE, "steps/s", higher_is_better=True),
            Axis(STEP, "ms", higher_is_better=False),
            Axis(MEMORY, "bytes", higher_is_better=False, deterministic=True),
        )

    def targets(self, parameters: Mapping[str, Scalar], oracle: str | None) -> tuple[Target, ...]:
        """The rate must reach the oracle's, where one is measured."""
        del parameters
        return (Target(RATE, "oracle", 1.0),) if oracle else ()

    def sites(self, parameters: Mapping[str, Scalar]) -> tuple[str, ...]:
        """All three."""
        del parameters
        return SITES

    def needs(self, parameters: Mapping[str, Scalar], device: DeviceFacts) -> Needs:
        """Next to nothing; a process that takes longer than ``limit_s`` hangs."""
        del device
        return Needs(
            0, 300_000_000, 10_000_000, 0.7, time_limit_s=float(parameters["limit_s"] or 0)
        )

    def oracle_mode(self, parameters: Mapping[str, Scalar], oracle: str) -> str:
        """The oracle is the same session, slower on the virtual clock."""
        del parameters
        return f"eager-{oracle}"

    def impossible(
        self, parameters: Mapping[str, Scalar], device: DeviceFacts
    ) -> Mapping[str, float]:
        """No bound is known."""
        del parameters, device
        return {}


def _typed(name: str, text: str) -> Scalar:
    allowed = CHOICES.get(name)
    if allowed is not None and text not in allowed:
        raise BadParameter(f"selftest: {name} = {text!r}", cure=f"use one of {', '.join(allowed)}")
    default = DEFAULTS[name]
    if isinstance(default, str):
        return text
    try:
        return int(text) if isinstance(default, int) else float(text)
    except ValueError as error:
        cure = f"use a number such as {default}"
        raise BadParameter(f"selftest: {name} = {text!r}", cure=cure) from error


SELFTEST = SelftestWorkload()
