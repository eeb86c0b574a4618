"""What a decided run says about its scope: the input of the default states (pure)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from experiments.records import Outcome
from experiments.values import FrozenMap, Scalar, Value, digest_of

if TYPE_CHECKING:
    from experiments.run_record import RunRecord

VERDICTS = (Outcome.DEFAULT_ON, Outcome.GATED_OFF, Outcome.TERMINAL)
"""The outcomes that decide a default state; inconclusive and invalid leave it as it was."""


class Scope(Value):
    """What a verdict is bound to, beside its stack: one setting on one workload and device kind."""

    lever: str
    setting: str
    ref: str
    workload: str
    parameters: FrozenMap[Scalar]
    device_kind: str

    @classmethod
    def of(cls, record: RunRecord) -> Scope:
        """The scope of a run."""
        spec = record.spec
        return cls(
            lever=spec.lever,
            setting=spec.cand,
            ref=spec.ref,
            workload=spec.workload,
            parameters=spec.parameters,
            device_kind=record.environment.device_kind,
        )

    @property
    def key(self) -> str:
        """A digest by which the scope is stored; the order of the parameters does not matter."""
        fields = (self.lever, self.setting, self.ref, self.workload, self.device_kind)
        return digest_of(json.dumps([*fields, dict(self.parameters)], sort_keys=True))

    @property
    def work(self) -> str:
        """A digest of what is run where, whichever the lever: one ON set belongs to it."""
        fields = (self.workload, self.device_kind)
        return digest_of(json.dumps([*fields, dict(self.parameters)], sort_keys=True))

    def __str__(self) -> str:
        return f"{self.workload} {self.lever}={self.setting} vs {self.ref} on {self.device_kind}"


class Evidence(Value):
    """What the default state must know of one decided run.

    ``place`` is the device's uuid, or the host where a device has none; ``on_set`` are the other
    levers that were on; ``invalidated`` is the reason, empty while the run stands.
    """

    run_id: str
    scope: Scope
    outcome: Outcome
    reason: str
    created_at: str
    boot_id: str
    place: str
    versions: FrozenMap[str]
    lever_digest: str
    on_set: tuple[str, ...] = ()
    invalidated: str = ""

    @classmethod
    def of(cls, record: RunRecord) -> Evidence | None:
        """The evidence of a run; None where it holds no verdict (screens, interrupted, invalid)."""
        decision, here = record.decision, record.environment
        if decision is None or record.kind != "ab" or decision.outcome not in VERDICTS:
            return None
        return cls(
            run_id=record.run_id,
            scope=Scope.of(record),
            outcome=decision.outcome,
            reason=decision.reason,
            created_at=record.created_at,
            boot_id=here.boot_id,
            place=here.device_uuid or here.host,
            versions=here.versions,
            lever_digest=record.spec.levers_source_digest,
            on_set=tuple(sorted(str(one) for one in record.spec.stack)),
        )

    def confirms(self, other: Evidence) -> bool:
        """Whether this run is a second opinion that agrees: another day, boot or device.

        Both must be bound to the same versions, lever source and set of other levers.
        """
        if self.outcome is not other.outcome or self.lever_digest != other.lever_digest:
            return False
        if self.on_set != other.on_set or self.versions != other.versions:
            return False
        mine = (self.created_at[:10], self.boot_id, self.place)
        return mine != (other.created_at[:10], other.boot_id, other.place)
