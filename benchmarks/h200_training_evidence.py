"""What a step of a driver left: its run, stack or row, in one line and as bundles."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.h200_training_steps import Step
from experiments import (
    bundles,
    checked,
    order_view,
    profile_store,
    render,
    screen_run,
    spool_reader,
)
from experiments.campaign import files as campaigns
from experiments.campaign.residual import floors_of
from experiments.home import Home
from experiments.profiling_records import Profile
from experiments.records import Sample
from experiments.run_record import RunRecord
from experiments.screen_records import ScreenRecord
from experiments.stack import reports as stack_reports
from experiments.stack import store as stack_store
from experiments.stack.records import StackRecord
from experiments.stack.view import gain_text
from experiments.view.verdict import view


def home_at(root: Path) -> Home:
    """The home in a folder, to read."""
    return Home(root, root / "locks")


def runs_of(root: Path) -> list[RunRecord]:
    """All runs of a home, oldest first."""
    runs = home_at(root).runs
    return [spool_reader.load(runs, one).record for one in spool_reader.run_ids(runs)]


def stacks_of(root: Path) -> list[StackRecord]:
    """All stacks of a home, oldest first."""
    home = home_at(root)
    return [stack_store.load(stack_store.find(home, one)) for one in stack_store.ids(home)]


def unfinished(root: Path, kind: str) -> str:
    """The last run or stack that was begun and has no last word; empty where there is none."""
    if kind == "ab":
        found = [one.run_id for one in runs_of(root)[-1:] if one.status != "decided"]
    elif kind == "stack":
        found = [one.stack_id for one in stacks_of(root)[-1:] if one.status == "running"]
    else:
        found = []
    return found[0] if found else ""


def held(root: Path) -> bool:
    """Whether the last run of a home has its parity, and samples are still to come."""
    last = [one for one in runs_of(root)[-1:] if one.decision is None]
    return any(checked.let_through(one) or one.samples for one in last)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is said of a step.

    Attributes:
        run: id of its run or stack; empty where it has none.
        text: one line.
        more: further fields for the summary.
    """

    run: str = ""
    text: str = ""
    more: Mapping[str, Any] | None = None

    def fields(self) -> dict[str, Any]:
        """For the journal."""
        return {"run": self.run, "text": self.text, **(self.more or {})}


def export(root: Path, folder: Path) -> None:
    """Write what is decided and measured in a home: bundles, and beside a run's its text."""
    home = home_at(root)
    for run in runs_of(root):
        if run.status == "decided":
            path = folder / f"{_named(run)}.json"  # of several, the last one stays
            bundles.export(run, path, profile_store.found(home, run.run_id))
            path.with_suffix(".md").write_text(render.markdown(view(run)), encoding="utf-8")
    for stack in stacks_of(root):
        if stack.status in ("measured", "refused"):
            stack_store.export(stack, folder / f"stack-{root.name}.json")
            text = stack_reports.markdown(stack)
            (folder / f"stack-{root.name}.md").write_text(text, encoding="utf-8")
    for row in sorted((root / campaigns.FOLDER).glob("*/row.*")):
        (folder / f"campaign-{row.parent.name}{row.suffix}").write_bytes(row.read_bytes())
    for screen in sorted((root / screen_run.SCREENS).glob("*.json")):
        (folder / f"screen-{root.name}.json").write_bytes(screen.read_bytes())


def _named(run: RunRecord) -> str:
    """What its bundle is called: lever, workload, size; of decode also setting and company."""
    spec = run.spec
    if "size" in spec.parameters:
        return "-".join((spec.lever, spec.workload, str(spec.parameters["size"])))
    model = Path(str(spec.parameters["model"])).name
    beside = [f"with-{len(spec.stack)}"] if spec.stack else []
    return "-".join(("ab", spec.lever, spec.cand, spec.workload, model, *beside))


def evidence_of(root: Path, step: Step, look: Path) -> Evidence:
    """What the last run, stack or look of a step says."""
    if step.kind == "ab" and (runs := runs_of(root)):
        return _of_run(runs[-1])
    if step.kind == "stack" and (stacks := stacks_of(root)):
        return _of_stack(stacks[-1])
    if step.kind == "screen" and (screens := sorted((root / screen_run.SCREENS).glob("*.json"))):
        return _of_screen(ScreenRecord.model_validate_json(screens[-1].read_bytes()))
    if step.kind == "roofline" and (runs := runs_of(root)):
        profile = profile_store.found(home_at(root), runs[-1].run_id)
        return Evidence() if profile is None else _of_profile(profile)
    if step.kind == "campaign":
        rows = sorted((root / campaigns.FOLDER).glob("*/row.json"))
        return _of_row(json.loads(rows[-1].read_text())) if rows else Evidence()
    if step.kind == "look" and look.exists():
        return _of_look(json.loads(look.read_text()))
    return Evidence()


def _of_run(record: RunRecord) -> Evidence:
    shown = view(record)
    facts = dict(shown.facts)
    checks = record.parity.checks if record.parity else ()
    parity = {one.name: round(one.seconds, 1) for one in checks if one.status != "not-run"}
    undecided = shown.label if checked.let_through(record) else "not decided"
    text = f"{shown.label} ({record.decision.reason})" if record.decision else undecided
    effect = facts.get("effect", "")
    more = {
        "outcome": record.decision.outcome.value if record.decision else None,
        "reason": record.decision.reason if record.decision else None,
        "detail": record.decision.detail if record.decision else None,
        "effect": effect,
        "samples": len(record.samples),
        "floors": floors_of([one for one in record.samples if one.arm == "cand"]),
        "parity_s": parity,
        "samples_s": [round(one.wall_s, 1) for one in record.samples],
        "spent_s": spent(record.samples),
    }
    said = f"{text}  {effect}  parity {sum(parity.values()):.0f} s, {len(record.samples)} samples"
    return Evidence(record.run_id, said, more)


def spent(samples: Sequence[Sample]) -> dict[str, dict[str, float]]:
    """Where the seconds of each arm's processes went: medians of all, and the oracle's first.

    The parts of a warm-up are those that its session names (``warm_compile_s``).
    """
    arms = {arm: [one for one in samples if one.arm == arm] for arm in ("ref", "cand", "oracle")}
    groups = {**arms, "oracle, first": arms["oracle"][:1]}
    return {name: _medians([_parts(one) for one in of]) for name, of in groups.items() if of}


def _parts(sample: Sample) -> dict[str, float]:
    """The seconds of one process."""
    warm = {
        name: float(value)
        for name, value in sample.telemetry.items()
        if name.startswith("warm_") and isinstance(value, int | float)
    }
    whole = {"start": sample.start_s, "warm-up": sample.warmup_s, "measured": sample.measured_s}
    return {"wall": sample.wall_s, **whole, **warm}


def _medians(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for one in parts for name in one)
    return {name: round(median(one[name] for one in parts if name in one), 2) for name in names}


def _of_stack(record: StackRecord) -> Evidence:
    analysis, axis = record.analysis, record.spec.axis
    gains = {one.name: gain_text(one, axis) for one in analysis.gains}
    total = gain_text(analysis.total, axis) if analysis.total else ""
    samples = sum(len(row.samples) for row in record.evidence)
    faults = "; ".join(f"{code}: {text}" for code, text in record.faults)
    oracles = [one for row in record.evidence if row.row.oracle for one in row.samples]
    more = {"status": record.status, "gains": gains, "total": total, "faults": faults}
    more |= {"spent_s": spent(oracles)}
    return Evidence(record.stack_id, f"{record.status} {faults or total}  {samples} samples", more)


def _of_row(row: Mapping[str, Any]) -> Evidence:
    reached = {one["axis"]: one["ratio"] for one in row["axes"]}
    levers = {one["lever"]: one["outcome"] or one["why"] for one in row["levers"]}
    more = {"row": row["state"], "reached": reached, "levers": levers}
    return Evidence(row["binding"], f"{row['state']}: {row['why']}", more)


def _of_look(found: Mapping[str, Any]) -> Evidence:
    rows = found.get("rows", ())
    if not rows or "values" not in rows[0]:  # of a kernel or a step: the file says it all
        return Evidence(text="figures are written")
    said = [
        "out of memory"
        if "out_of_memory" in row
        else f"{row['values']['train/step_ms']:.1f} ms {row['values']['train/mfu_true']:.1f} %"
        for row in rows
    ]
    return Evidence(text=" -> ".join(said), more={"looked": said})


def _of_screen(record: ScreenRecord) -> Evidence:
    rows = [" ".join(row) for row in order_view.of_screen(record).rows]
    more = {"rows": rows, "failure": record.failure}
    return Evidence(record.screen_id, record.failure or "; ".join(rows), more)


def _of_profile(profile: Profile) -> Evidence:
    groups = {one.group: round(one.ms, 2) for one in profile.groups}
    said = ", ".join(f"{name} {ms} ms" for name, ms in groups.items() if ms)
    return Evidence(text=said, more={"groups": groups, "step_ms": profile.step_ms})
