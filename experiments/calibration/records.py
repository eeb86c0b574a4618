"""What an A/A calibration knows: this machine's noise, and how often it makes a false verdict.

Both arms of a calibration are the reference without any lever, so every effect that it shows is
noise and every verdict that says otherwise is false. Its pairs are kept, and what is drawn from
them (noise, rates, smallest visible effects) stands beside them. Log ratios throughout.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime

from experiments.records import Environment
from experiments.requests import FalseVerdictRate
from experiments.spec import DEFAULT_LOOKS
from experiments.values import SCHEMA_VERSION, FrozenMap, Scalar, Value, digest_of
from levers.policy import Axis

OLDEST_DAYS = 30
"""A calibration further than this from a run is stale: machines drift."""


class AxisNoise(Value):
    """The noise of one axis between the two processes of a pair.

    Attributes:
        sd: standard deviation of d, order effect taken out.
        position: how much slower (log ratio) a pair's second process is than its first.
        lag_one: lag-1 correlation from pair to pair of the difference between the processes.
        visible: at each planned look, half of the interval: the smallest effect told from zero.
        seen_at_80: the smallest effect that a whole plan tells from zero in 80 % of runs.
    """

    axis: str
    sd: float
    position: float
    lag_one: float
    visible: tuple[float, ...]
    seen_at_80: float


class Rate(Value):
    """A share of 1 with its 95 % interval."""

    rate: float
    lower: float
    upper: float


class PolicyRates(Value):
    """How runs of equal arms end under one policy.

    Attributes:
        levers: whose policy it is.
        false: runs that end in a win, a regression or as slower, none of which is so.
        wins: those among them that would ship.
        ends: the share of each reason; ``undecided`` reached the last look without a verdict.
        mean_pairs: pairs until the end.
    """

    levers: tuple[str, ...]
    false: Rate
    wins: Rate
    ends: FrozenMap[float]
    mean_pairs: float


class Calibration(Value):
    """One A/A measurement of a workload on a machine.

    Attributes:
        calibration_id: id of its run.
        slowness: per axis, the log slowness of the first and the second process of each valid pair
            in time order (for a rate the log of its inverse).
        lost: pairs that were lost.
        seconds_per_pair: wall clock of a pair, with its share of the servers.
        resamples: runs drawn from the pairs for each rate.
    """

    schema_version: int = SCHEMA_VERSION
    calibration_id: str
    created_at: str
    workload: str
    parameters: FrozenMap[Scalar]
    device: str
    environment: Environment
    seed: int
    looks: tuple[int, ...] = DEFAULT_LOOKS
    axes: tuple[Axis, ...]
    slowness: FrozenMap[tuple[tuple[float, float], ...]]
    lost: int = 0
    seconds_per_pair: float
    resamples: int
    noise: tuple[AxisNoise, ...]
    rates: tuple[PolicyRates, ...]
    warnings: tuple[str, ...] = ()

    @property
    def pairs(self) -> int:
        """Valid pairs."""
        return min((len(one) for one in self.slowness.values()), default=0)

    @property
    def place(self) -> str:
        """The key of the machine and the work that it is about."""
        here = self.environment
        return place_key(self.workload, self.parameters, here.device_kind, here.host)

    def rate_for(self, lever: str) -> PolicyRates:
        """The rates under a lever's policy; the worst of all where that policy was not known."""
        mine = [one for one in self.rates if lever in one.levers]
        return max(mine or self.rates, key=lambda one: one.false.rate)

    def stale_for(self, versions: Mapping[str, str], moment: str) -> str:
        """Why it says little of a run with this stack at this moment; empty where it does."""
        mine = self.environment.versions
        changed = sorted(
            name for name in {*mine, *versions} if mine.get(name) != versions.get(name)
        )
        if changed:
            return f"measured on another stack: {', '.join(changed)}"
        days = abs((_moment(moment) - _moment(self.created_at)).total_seconds()) / 86400
        return f"measured {days:.0f} days apart" if days > OLDEST_DAYS else ""

    def beside(self, lever: str, versions: Mapping[str, str], moment: str) -> FalseVerdictRate:
        """What is printed beside a verdict of this lever."""
        false = self.rate_for(lever).false
        return FalseVerdictRate(
            rate=false.rate,
            lower=false.lower,
            upper=false.upper,
            measured_at=self.created_at,
            stale=bool(self.stale_for(versions, moment)),
        )


def place_key(workload: str, parameters: Mapping[str, Scalar], device_kind: str, host: str) -> str:
    """A digest of machine and work; the order of the parameters does not matter."""
    return digest_of(json.dumps([workload, device_kind, host, dict(parameters)], sort_keys=True))


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
