"""The README's tables of verdicts and of stacks, from the bundles in ``docs/results``.

    python -m benchmarks.results_table            prints it
    python -m benchmarks.results_table --write    puts it into README.md

The first has one row for each decided run, by device and then by the order of the file names. Where
it was measured: the workload, the parameters that are not its own for that size, the levers that
were on in both arms, the device. The second has a row for each lever that a stack of several adds.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments import bundles
from experiments.dose import UNTOLD
from experiments.files import write_atomically
from experiments.run_record import RunRecord
from experiments.stack import store
from experiments.stack.view import view as stack_view
from experiments.view.verdict import view
from experiments.workloads import catalog as workloads
from experiments.workloads.base import DeviceFacts
from levers.errors import LevergateError

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"

HEAD = (
    "| lever | measured | verdict | effect [interval that holds over all looks] | pairs "
    "| evidence |",
    "|---|---|---|---|---:|---|",
)

MEMBER = re.compile(r"(?:^|; )(\w+=\w+): ")
"""How a set of levers begins what each of its members saw (:mod:`benchmarks.whole_stack`)."""

PLAIN = ("failing-axis-win", "byte-exact")
"""Reasons that the verdict's name implies."""


STACK_HEAD = (
    "| levers added in turn | step | true MFU | peak memory | own gain [95 % interval] | so far "
    "| evidence |",
    "|---|---:|---:|---:|---|---:|---|",
)

FEWEST_LEVERS = 2
"""A stack of one lever adds nothing in turn."""


def found(root: Path) -> list[Path]:
    """The bundles of runs below ``docs/results``, in the order of the table."""
    paths = sorted(root.glob("docs/results/*/*.json"))
    return [path for path in paths if json.loads(path.read_text()).get("format") == bundles.FORMAT]


def table(root: Path) -> list[str]:
    """The lines of the table."""
    return [*HEAD, *(row(path, root) for path in found(root))]


def row(path: Path, root: Path) -> str:
    """One decided run.

    Raises:
        StoreError: the bundle is damaged.
    """
    record = bundles.read_bundle(path)
    shown = view(record)
    facts = dict(shown.facts)
    place = path.relative_to(root)
    cells = (
        title(record, shown.title),
        measured(record),
        verdict(record, shown.label),
        facts.get("effect", "").replace("; ", "<br>") or "-",
        facts.get("pairs used", "0").split()[0],
        f"[text]({place.with_suffix('.md')}), [bundle]({place})",
    )
    return f"| {' | '.join(cells)} |"


def stacks(root: Path) -> list[Path]:
    """The bundles of measured stacks of several levers below ``docs/results``."""
    paths = [one for one in sorted(root.glob("docs/results/*/*.json")) if store.is_bundle(one)]
    records = {path: store.read_bundle(path) for path in paths}
    return [
        path
        for path, record in records.items()
        if record.status == "measured" and len(record.spec.levers) >= FEWEST_LEVERS
    ]


def stack_table(root: Path) -> list[str]:
    """The lines of the table of stacks."""
    return [*STACK_HEAD, *(line for path in stacks(root) for line in stack_rows(path, root))]


def stack_rows(path: Path, root: Path) -> Iterator[str]:
    """One stack: its work without a lever, then each lever's row of the waterfall."""
    record = store.read_bundle(path)
    place = path.relative_to(root)
    shown = next(one for one in stack_view(record).tables if one.title == "Waterfall")
    spec = record.spec
    for number, cells in enumerate(shown.rows):
        named = dict(zip(shown.columns, cells, strict=True))
        lever = named["levers"]
        if number == 0:
            size = f" size={spec.parameters['size']}" if "size" in spec.parameters else ""
            lever = f"{spec.workload}{size} on {record.environment.device_kind}, {lever}"
        evidence = f"[text]({place.with_suffix('.md')}), [bundle]({place})" if not number else ""
        values = (f"{named['step_ms ms']} ms", f"{named['mfu_true %']} %", named["peak_bytes"])
        yield f"| {' | '.join((lever, *values, named['own gain'], named['so far'], evidence))} |"


def title(record: RunRecord, named: str) -> str:
    """The lever; of a set its members too, as its witnesses name them.

    A member whose work another one takes in shows in the reference's paths alone.
    """
    plans = [plan for one in record.witnesses for plan in one.plans.values()]
    members = dict.fromkeys(MEMBER.findall("; ".join(plans)))
    return f"`{named}`" + (f"<br>({', '.join(members)})" if members else "")


def verdict(record: RunRecord, label: str) -> str:
    """The verdict, with the reason where it does not go without saying."""
    reason = record.decision.reason if record.decision else ""
    return label if reason in PLAIN else f"{label} ({reason})"


def measured(record: RunRecord) -> str:
    """The work and where it was done."""
    spec = record.spec
    work = ", ".join([" ".join([spec.workload, *own(record)[:1]]), *own(record)[1:]])
    others = f" beside {', '.join(map(str, spec.stack))}" if spec.stack else ""
    return f"{work}{others} on {record.environment.device_kind}"


def own(record: RunRecord) -> list[str]:
    """The parameters that differ from the workload's own, which a size or a model sets as one."""
    spec, environment = record.spec, record.environment
    memory = environment.device_memory_bytes or environment.memory_bytes
    device = DeviceFacts(spec.device, environment.device_kind, memory)
    workload = workloads.get(spec.workload)
    plain = workload.resolve({}, device)
    sized = {name: str(spec.parameters[name]) for name in ("size",) if name in spec.parameters}
    base = workload.resolve(sized, device)
    named = [name for name in ("size", "model") if spec.parameters.get(name) != plain.get(name)]
    changed = [
        name
        for name, value in spec.parameters.items()
        if name not in (*named, *UNTOLD) and not name.endswith("digest") and value != base.get(name)
    ]
    return [f"{name}={spec.parameters[name]}" for name in (*named, *changed)]


def put(text: str, lines: Sequence[str], head: str = HEAD[0]) -> str:
    """The text with the table that it holds replaced.

    Raises:
        ValueError: it holds no such table.
    """
    before, found, after = text.partition(f"{head}\n")
    if not found:
        raise ValueError(f"no table that begins with {head!r}")
    rest = after.splitlines(keepends=True)
    end = next((at for at, line in enumerate(rest) if not line.startswith("|")), len(rest))
    return before + "".join(f"{line}\n" for line in lines) + "".join(rest[end:])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="put it into README.md")
    asked = parser.parse_args(arguments)
    try:
        lines, stacked = table(ROOT), stack_table(ROOT)
    except LevergateError as error:
        print(f"{error.message}; {error.cure}", file=sys.stderr)
        return 1
    if asked.write:
        text = put(README.read_text(encoding="utf-8"), lines)
        write_atomically(README, put(text, stacked, STACK_HEAD[0]))
    else:
        print("\n".join([*lines, "", *stacked]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
