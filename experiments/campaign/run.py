"""Running a campaign: every open lever, then the binding run; the row is drawn after each.

What is decided in this scope with the present stack is not measured again, and what was cut by a
kill goes on: an A/B and a binding run from their samples, a campaign from its registry.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from experiments import now, pipeline, several, spool_reader
from experiments.campaign import binding, estimates, selections, store, tokens
from experiments.campaign.draw import Drawing, draw
from experiments.campaign.files import CampaignFile
from experiments.campaign.place import Place
from experiments.campaign.records import CampaignRow, LeverStanding
from experiments.campaign.spec import PlannedLever
from experiments.campaign.standings import Stored, able_of, last_run
from experiments.defaults import Current
from experiments.evidence import Scope
from experiments.home import Home
from experiments.parsing import budget_seconds
from experiments.prepare import MOST_PAIRS
from experiments.registry.store import Registry
from experiments.requests import AbRequest, Listener
from experiments.run_record import RunRecord
from experiments.spec import DEFAULT_LOOKS, LeverSetting
from experiments.spool_reader import VERDICT
from experiments.stack import pipeline as stack_pipeline
from experiments.stack.requests import StackRequest
from levers.base import OFF, Lever
from levers.errors import StoreError, UsageError
from levers.source import source_digest

BINDING_SHARE = 1.5
"""How much longer than its samples a binding run takes: parity, the starting of processes."""


@dataclass(frozen=True, slots=True)
class Budgets:
    """Limits as typed, which go before the file's; None takes the file's."""

    whole_s: float | None = None
    lever_s: float | None = None


@dataclass(slots=True)
class Sitting:
    """One sitting of a campaign.

    Attributes:
        drawn: told of each row, so that it is stored before the next step.
    """

    file: CampaignFile
    place: Place
    home: Home
    budgets: Budgets
    listener: Listener
    before: CampaignRow | None
    drawn: Callable[[CampaignRow], None]
    clock: Callable[[], float] = time.monotonic
    _began: float = 0.0
    _problems: dict[str, str] = field(default_factory=dict)

    def go(self) -> CampaignRow:
        """Measure what is open, within the budget, and give the row as it stands then.

        Raises:
            UsageError: the device of the campaign is not here; nothing was measured.
            KeyboardInterrupt: it was interrupted; running it again goes on.
        """
        if self.place.device is None:
            raise UsageError(
                f"campaign {self.file.name} cannot run here: {self.place.absent}",
                cure=f"levergate campaign status {self.file.name} shows what is stored",
            )
        self._began = self.clock()
        try:
            row = self._levers()
            return self._binding(row)
        except KeyboardInterrupt as stopped:
            said = f"campaign {self.file.name} was interrupted; go on with "
            raise KeyboardInterrupt(f"{said}levergate campaign run {self.file.name}") from stopped

    # --- the levers ---------------------------------------------------------------------------

    def _levers(self) -> CampaignRow:
        row = self._draw()
        for standing in row.open_levers:
            planned = estimates.planned_of(self.place, standing)
            limit_s = self._limit_s(planned)
            if limit_s is not None and limit_s <= 0:
                self.listener.on_warning(f"the budget is spent; {standing.lever} stays open")
                break
            self.listener.on_stage("lever", f"{standing.lever} ({', '.join(planned.candidates)})")
            self._measure(standing, planned, limit_s)
            row = self._draw()
        return row

    def _limit_s(self, planned: PlannedLever) -> float | None:
        """What one lever may take: its own limit, and what the whole leaves beside the binding."""
        own = self.budgets.lever_s or estimates.limit_s(self.place, planned)
        left = self._left_s()
        if left is None:
            return own
        reserve = (estimates.binding_s(self.place, 4) or 0.0) * BINDING_SHARE
        left = max(0.0, left - reserve)
        return left if own is None else min(own, left)

    def _left_s(self) -> float | None:
        text = self.place.campaign.budget
        whole = self.budgets.whole_s or (budget_seconds(text) if text else None)
        return None if whole is None else whole - (self.clock() - self._began)

    def _measure(
        self, standing: LeverStanding, planned: PlannedLever, limit_s: float | None
    ) -> None:
        """One lever through the pipeline of ``ab``; a request that cannot be run leaves it open."""
        lever = next(one for one in self.place.levers if one.name == standing.lever)
        able, _ = able_of(self.place, planned, lever)
        request = self._request(lever, planned, able, limit_s)
        try:
            if len(able) == 1:
                pipeline.ab(self._resumed(request, lever, able[0]), self.listener)
            else:
                self._select(request, able)
        except UsageError as error:
            self._problems[lever.name] = f"could not be measured: {error}"
            self.listener.on_warning(f"{lever.name} stays open: {error}")

    def _request(
        self, lever: Lever, planned: PlannedLever, able: Sequence[str], limit_s: float | None
    ) -> AbRequest:
        campaign, device, setting = self.place.campaign, self.place.device, able[0]
        found = self._tokens(lever.name, able)
        assert device is not None, "a campaign is measured where its device is"
        return AbRequest(
            lever=lever.name,
            cand=setting,
            workload=campaign.workload,
            device=device.facts.device,
            settings=campaign.settings,
            budget_s=limit_s,
            seed=campaign.seed,
            oracle=campaign.lever_oracle or campaign.oracle,
            max_pairs=planned.pairs or self._pairs(lever.name, setting),
            tokens_on=found.texts,
            selected=found.left_out,
        )

    def _tokens(self, lever: str, able: Sequence[str]) -> tokens.Models:
        """The models on which a candidate can be compared; what is left out is said."""
        others = tuple(one for one in self._on() if one.lever != lever)
        candidates = tuple(LeverSetting(lever=lever, setting=setting) for setting in able)
        found = tokens.models_for_any(self.place, candidates, others)
        for text in found.left_out:
            self.listener.on_warning(text)
        return found

    def _on(self) -> tuple[LeverSetting, ...]:
        """The levers that are on here now."""
        with Registry.open(self.home.registry) as registry:
            current = now.stack(registry, self.place.driver, self.place.known)
            return binding.on_set(self.place, registry, current)

    def _pairs(self, lever: str, setting: str) -> int | None:
        """More pairs than the default plan where an earlier run said that they would settle it."""
        with Registry.open(self.home.registry) as registry:
            stored = Stored(registry, self.home, Current())
            last = last_run(stored, self.place.scope(lever, setting))
        more = last.decision.pairs_needed if last is not None and last.decision else None
        if more is None or last is None:
            return None
        needed = more + (last.looks[-1].pairs if last.looks else 0)
        return min(MOST_PAIRS, needed) if needed > DEFAULT_LOOKS[-1] else None

    def _select(self, request: AbRequest, able: tuple[str, ...]) -> None:
        """Several settings; a selection that was interrupted goes on where it can."""
        if begun := selections.unfinished(self.home, request, able):
            try:
                several.resume(AbRequest(lever=request.lever, resume=begun), self.listener)
                return
            except UsageError as error:
                self.listener.on_warning(f"selection {begun} cannot go on: {error}")
        several.ab(request, able, self.listener)

    def _resumed(self, request: AbRequest, lever: Lever, setting: str) -> AbRequest:
        """The request, going on with a run that was interrupted in this scope and stack."""
        scope = self.place.scope(request.lever, setting)
        others = {str(one) for one in self._on() if one.lever != request.lever}
        subjects = (LeverSetting(lever=lever.name, setting=setting),)
        for run_id in reversed(spool_reader.run_ids(self.home.runs)):
            if (self.home.runs / run_id / VERDICT).is_file():
                continue
            record = self._interrupted(run_id)
            if record is None or Scope.of(record).key != scope.key:
                continue
            spec, here = record.spec, record.environment
            same = (
                {str(one) for one in spec.stack} == others
                and spec.levers_source_digest == source_digest(lever)
                and dict(here.versions) == dict(self.place.versions)
                and spec.oracle == request.oracle
                and spec.ref == OFF
                and not tokens.lacking(self.place, spec, subjects)
            )
            if same:
                return AbRequest(lever=request.lever, cand=setting, resume=run_id)
        return request

    def _interrupted(self, run_id: str) -> RunRecord | None:
        """A run that is on disk alone and has no writer any more."""
        try:
            record = spool_reader.load(self.home.runs, run_id).record
        except StoreError:
            return None
        return record if record.kind == "ab" and record.status == "interrupted" else None

    # --- the binding run ----------------------------------------------------------------------

    def _binding(self, row: CampaignRow) -> CampaignRow:
        """Measure what ships as a whole, unless that was done; then draw the row again."""
        if not row.unbound:
            return row
        left_s = self._left_s()
        if left_s is not None and left_s <= 0:
            self.listener.on_warning("the budget is spent before the binding run")
            return row
        self.listener.on_stage("binding run", "what ships, each lever left out once, the oracle")
        try:
            stack_pipeline.stack(self._stack_request(left_s), self.listener)
        except UsageError as error:
            self.listener.on_warning(f"no binding run: {error}")
            return row
        return self._draw()

    def _stack_request(self, left_s: float | None) -> StackRequest:
        on = self._on()
        found = binding.bound(self.place, self.home, on)
        if found.unfinished:
            return StackRequest(self.place.workload.name, resume=found.unfinished, profile=True)
        for text in tokens.models_for(self.place, on).left_out:
            self.listener.on_warning(text)
        return binding.request_of(self.place, on, left_s)

    # --- the row ------------------------------------------------------------------------------

    def _draw(self) -> CampaignRow:
        with Registry.open(self.home.registry) as registry:
            stored = Stored(
                registry, self.home, now.stack(registry, self.place.driver, self.place.known)
            )
            row = draw(
                Drawing(self.file, self.place, stored, self.before, self._problems),
                datetime.now(UTC),
            )
            store.save(registry.store, row)
        self.before = row
        self.drawn(row)
        return row
