"""Microseconds a call of each decode attention backend, by its number of KV splits.

    python benchmarks/split_table.py                    # on the device: every backend that is there
    python benchmarks/split_table.py --layouts          # the layouts of our own kernel instead
    python benchmarks/split_table.py --rehearse         # tiny, on the CPU (with TRITON_INTERPRET=1
                                                        # also --layouts)
    python benchmarks/split_table.py --write FILE ...   # what `fa2_nsplits_cap=tuned` reads

A call is timed inside a CUDA graph of at least 20 calls that walks through the caches of several
layers, together twice as large as the L2 cache or more, so that no call finds its keys there. All
counts of a shape are captured first and then replayed in turn, several times over; the figure is
the median of a count. 0 is the backend's own rule. The file (``--out``, by default
``$OUT/split_table.json``) is written after each shape, and a later call goes on from it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import split_table_timing as timing
from benchmarks.split_table_timing import BLOCK, DIM, KV_HEADS, Shape
from levers.kernels.decode_attn_needs import missing_package
from levers.kernels.split_kv_config import CANDIDATES, DEFAULT, SplitConfig, config_named
from levers.kernels.tuned_splits_table import TunedRow, row_of

BACKENDS = ("triton", "fa2", "fa3")
COUNTS = (0, *range(1, 17), 24, 32)
"""0, the backend's own rule, and every number of splits that a table holds."""
LAYOUT_COUNTS = (2, 4, 8, 12, 16, 24)
LAYOUT_SHAPES = (
    Shape(32, 2048, 1),
    Shape(16, 2048, 1),
    Shape(32, 512, 1),
    Shape(32, 4096, 1),
    Shape(32, 2048, 8),
    Shape(32, 2048, 32),
    Shape(16, 4096, 32),
)
TARGET_US = 12.9
"""FlashAttention-3 at 32 query heads, 2048 tokens, batch 1 on an H200, with its best count."""
REHEARSAL = {"heads": [16], "tokens": [256, 512], "batch": [1, 2], "splits": [0, 1, 2]}
MODULE = Path(__file__).resolve().parents[1] / "levers/kernels/tuned_splits_h200.py"


def counts_of(shape: Shape, backend: str, asked: list[int]) -> list[int]:
    """The counts worth a call: our pieces and FA2's are whole KV blocks, FA3's may be smaller."""
    most = 2 * shape.kv_blocks if backend == "fa3" else shape.kv_blocks
    return [count for count in asked if count <= most]


def shapes(asked: argparse.Namespace) -> Iterator[Shape]:
    """Short shapes first, so that a call that is cut short has most rows."""
    for tokens in asked.tokens:
        for batch in asked.batch:
            for heads in asked.heads:
                yield Shape(heads, tokens, batch)


def table_of(report: dict[str, Any], backend: str, layout: SplitConfig) -> dict[str, Any]:
    """The table of a backend in the report, new or from an earlier call."""
    name = layout.name if backend == "triton" else ""
    for table in report["tables"]:
        if (table["backend"], table["layout"]) == (backend, name):
            found: dict[str, Any] = table
            return found
    made = {"backend": backend, "layout": name, "version": timing.version(backend), "rows": []}
    report["tables"].append(made)
    return made


def line(backend: str, shape: Shape, us: Mapping[int, float], left_s: float) -> str:
    """A shape's progress line: the own rule, the best count and what it gains."""
    best = min((count for count in us if count), key=lambda count: us[count])
    gain = 100 * (us[0] / us[best] - 1)
    return (
        f"{backend:6} {shape.label:24} rule {us[0]:8.2f}  best {best:2}: {us[best]:8.2f} us "
        f"({gain:+5.1f} %)  {shape.bytes / us[best] / 1e3:6.0f} GB/s  {left_s:4.0f} s left"
    )


def measure(asked: argparse.Namespace, report: dict[str, Any]) -> None:
    """Fill a table for each backend, within the seconds given to each."""
    layout = config_named(asked.layout)
    for backend in asked.backend:
        reasons = missing_package(backend)
        if reasons:
            print(f"left out: {reasons[0]}", flush=True)
            continue
        table = table_of(report, backend, layout)
        done = {(row["query_heads"], row["tokens"], row["batch"]) for row in table["rows"]}
        end = time.monotonic() + asked.seconds
        for shape in shapes(asked):
            if time.monotonic() > end:
                print(f"{backend}: the {asked.seconds:.0f} s are over; call again to go on")
                break
            if (shape.heads, shape.tokens, shape.batch) in done:
                continue
            counts = counts_of(shape, backend, asked.splits)
            us = timing.microseconds(backend, shape, counts, asked, layout)
            table["rows"].append(
                {"query_heads": shape.heads, "tokens": shape.tokens, "batch": shape.batch, "us": us}
            )
            print(line(backend, shape, us, end - time.monotonic()), flush=True)
            save(asked.out, report)


def measure_layouts(asked: argparse.Namespace, report: dict[str, Any]) -> None:
    """Every layout of our kernel at a few shapes and counts, beside the libraries at theirs."""
    found = report.setdefault("layouts", [])
    shapes = (Shape(16, 256, 1),) if asked.rehearse else LAYOUT_SHAPES
    names = [one for one in ("fa2", "fa3") if not asked.rehearse and not missing_package(one)]
    for shape in shapes:
        best: dict[str, tuple[float, int]] = {}
        contenders = [("triton", config) for config in CANDIDATES]
        for backend, config in [*contenders, *((name, DEFAULT) for name in names)]:
            asked_counts = [0, *LAYOUT_COUNTS] if backend != "triton" else list(LAYOUT_COUNTS)
            counts = counts_of(shape, backend, asked_counts)
            us = timing.microseconds(backend, shape, counts, asked, config)
            name = config.name if backend == "triton" else backend
            best[name] = min((value, count) for count, value in us.items())
            found.append({"shape": shape.label, "name": name, "us": us})
            print(f"{shape.label:24} {name:20} {best[name][0]:8.2f} us, {best[name][1]} splits")
            save(asked.out, report)
        winner = min(best, key=lambda name: best[name])
        print(f"{shape.label}: fastest {winner}, {best[winner][0]:.2f} us", flush=True)
    first = [row for row in found if row["shape"] == shapes[0].label]
    ours = {row["name"]: min(row["us"].values()) for row in first if row["name"][0] == "r"}
    name = min(ours, key=lambda one: ours[one])
    print(f"{shapes[0].label}: ours {name} {ours[name]:.2f} us; FA3 on an H200 {TARGET_US} us")


def save(out: Path | None, report: Mapping[str, Any]) -> None:
    """Write what is known."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=1) + "\n")


def begun(out: Path | None, head: Mapping[str, Any]) -> dict[str, Any]:
    """The report of an earlier call in the same place, or a new one.

    A file of another device, version or cache is not written over.
    """
    if out is None or not out.is_file():
        return {**head, "tables": []}
    earlier: dict[str, Any] = json.loads(out.read_text())
    other = [name for name, value in head.items() if name != "day" and earlier.get(name) != value]
    if other:
        raise SystemExit(f"{out} was measured with another {', '.join(other)}: name another --out")
    return earlier


def row_text(row: TunedRow) -> str:
    """A row as the module holds it."""
    shape = f"{row.query_heads}, {row.tokens}, {row.batch}, {row.splits}"
    return f"            TunedRow({shape}, {row.us!r}, {row.rule_us!r}, {row.least_us!r}),"


def module_text(reports: list[dict[str, Any]]) -> str:
    """The module of the tables of some reports."""
    parts = [timing.MODULE_HEAD]
    for report in reports:
        for table in report["tables"]:
            rows = [
                row_of(
                    one["query_heads"],
                    one["tokens"],
                    one["batch"],
                    {int(count): us for count, us in one["us"].items()},
                )
                for one in table["rows"]
            ]
            rows.sort(key=lambda row: (row.query_heads, row.tokens, row.batch))
            parts += [
                "    TunedTable(",
                f'        device="{report["device"]}",',
                f"        sm_count={report['sm_count']},",
                f'        backend="{table["backend"]}",',
                f"        kv_heads={report['kv_heads']},",
                f"        kv_block={report['kv_block']},",
                f'        source="{timing.source(report, table)}",',
                "        rows=(",
                *(row_text(row) for row in rows),
                "        ),",
                "    ),",
            ]
    return "\n".join([*parts, ")"]) + "\n"


def arguments(words: list[str] | None) -> argparse.Namespace:
    """The command line."""
    folder = os.environ.get("OUT")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", nargs="+", choices=[*BACKENDS, "torch"], default=BACKENDS)
    parser.add_argument("--heads", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--splits", type=int, nargs="+", default=COUNTS)
    parser.add_argument("--kv", choices=["paged", "contiguous"], default="paged")
    parser.add_argument("--layout", default=DEFAULT.name, help="of our Triton kernel")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=90.0, help="for each backend")
    parser.add_argument("--layouts", action="store_true")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--write", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--module", type=Path, default=MODULE)
    parser.add_argument(
        "--out", type=Path, default=Path(folder, "split_table.json") if folder else None
    )
    asked = parser.parse_args(words)
    if asked.rehearse:
        for name, value in {"backend": ["torch"], "repeats": 2, **REHEARSAL}.items():
            setattr(asked, name, value)
    asked.splits = sorted({0, *asked.splits})
    return asked


def main(words: list[str] | None = None) -> None:
    """Measure, or write the module of what was measured."""
    asked = arguments(words)
    if asked.write:
        reports = [json.loads(path.read_text()) for path in asked.write]
        asked.module.write_text(module_text(reports))
        print(f"wrote {asked.module}")
        return
    shape = {"kv": asked.kv, "kv_heads": KV_HEADS, "head_dim": DIM, "kv_block": BLOCK}
    report = begun(asked.out, {**timing.device(asked.rehearse), **shape})
    print(f"{report['device']}, {report['sm_count']} SMs, {asked.kv} cache", flush=True)
    (measure_layouts if asked.layouts else measure)(asked, report)


if __name__ == "__main__":
    main()
