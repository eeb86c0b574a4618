"""Every cut of an MXFP4 product into programs, timed; the module of the best (``mxfp4_gemv``).

The products are those of Qwen3-0.6B and -4B, the 4 B size and one row first, so that a call which
is cut short has what matters. Kernels are compiled by several processes before anything is timed.
Weights are random words: a cut's time does not depend on them. In front of qkv and gate_up stand
their residual add and norm, as in a decode step, and are in the time: a launch that begins early
gains what it can overlap. Each cut is checked once against PyTorch's product with the same weights,
and what is off by more than :data:`.LARGEST_ERROR` is never written to the table.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.mxfp4_gemv import COPY_BYTES_PER_S, Timer
from benchmarks.mxfp4_products import LARGEST_ERROR, Product, call, products, step, truth
from levers.kernels.mxfp4_plans import Plan, row_class

MODULE = Path(__file__).resolve().parents[1] / "levers/kernels/mxfp4_plans_h200.py"
WALK_BYTES = 160 << 20
"""Packed copies of a matrix that one graph walks through: 2.7 times an H200's cache of 60 MB."""
OWN_SHARE = 1.01
"""The rule's cut is kept where it is this near the fastest: a repeat may say otherwise."""
HEAD = '''\
"""Cuts of MXFP4 products measured on a device (written by ``mxfp4_gemv --write``).

By outputs, inputs, gate and rows; beside each, microseconds a call with it and by the rule.
"""

from __future__ import annotations

from collections.abc import Mapping

from levers.kernels.mxfp4_plans import Key, Plan

'''


def compiled(job: tuple[Product, Plan, str]) -> str:
    """Compile and run one launch, in a process of its own; what went wrong, or nothing."""
    from triton.errors import TritonError

    one, plan, device = job
    torch.set_num_threads(1)
    small = Product(one.model, one.matrix, one.rows, min(one.outputs, 4096), one.inputs)
    x, (weight,) = small.tensors(device, 1)
    try:
        call(small, x, weight, plan)
        torch.cuda.synchronize()
    except (RuntimeError, TritonError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    return ""


Pair = tuple[Product, Plan]


def compile_all(
    pairs: list[Pair], pool: ProcessPoolExecutor, device: str, deadline: float
) -> dict[Pair, str]:
    """Fill Triton's cache; those that cannot run or were not reached, with the reason."""
    by_kernel: dict[tuple[Any, ...], list[Pair]] = {}
    for one, plan in pairs:
        by_kernel.setdefault(one.kernel(plan), []).append((one, plan))
    futures = [(some, pool.submit(compiled, (*some[0], device))) for some in by_kernel.values()]
    bad: dict[Pair, str] = {}
    for some, future in futures:
        try:
            reason = future.result(timeout=max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            future.cancel()
            reason = "not reached"
        bad |= dict.fromkeys(some, reason) if reason else {}
    return bad


def sweep(
    product: Product, plans: list[Plan], device: str, bad: Mapping[Pair, str], timer: Timer
) -> Iterator[dict[str, Any]]:
    """Some cuts of a product: microseconds, error, or why it was left out."""
    copies = 2 if device == "cpu" else max(2, -(-WALK_BYTES // product.weight_bytes))
    x, weights = product.tensors(device, copies)
    true = truth(product, x, weights[0])
    for plan in plans:
        row = {**asdict(product), "gate": product.gate, "normed": product.normed}
        row |= {"plan": asdict(plan), "name": str(plan)}
        if (product, plan) in bad:
            yield {**row, "left_out": bad[product, plan]}
            continue
        error = float((call(product, x, weights[0], plan) - true).norm() / true.norm())
        calls = [lambda w=w, p=plan: step(product, x, w, p) for w in weights]  # type: ignore[misc]
        us = timer.us(calls)
        share = product.weight_bytes / us / (COPY_BYTES_PER_S / 1e6)
        yield {**row, "us": round(us, 3), "of_copy": round(share, 3), "error": error}


def best_of(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The fastest right cut, or the rule's where that is as good: its cut early or not."""
    right = [one for one in rows if "us" in one and one["error"] <= LARGEST_ERROR]
    if not right:
        return None
    least = min(one["us"] for one in right)
    return next(one for one in right if one["us"] <= OWN_SHARE * least)


def shown(rows: list[dict[str, Any]]) -> str:
    """One line of a product."""
    timed, best = [one for one in rows if "us" in one], best_of(rows)
    wrong = [one["name"] for one in timed if not one["error"] <= LARGEST_ERROR]
    head = f"{rows[0]['model']:>9} {rows[0]['matrix']:8} N={rows[0]['rows']:<3}"
    if best is None:
        reasons = {one["left_out"] for one in rows if "left_out" in one}
        return f"{head} nothing right: wrong {wrong}, left out {reasons}"
    others = "  ".join(f"{one['name']} {one['us']:.2f}" for one in timed)
    return (
        f"{head} best {best['us']:7.2f} us, {100 * best['of_copy']:3.0f}% of copy "
        f"({best['name']})   {others}" + (f"  WRONG {wrong}" if wrong else "")
    )


def module_text(report: Mapping[str, Any]) -> str:
    """The module of the best cuts of a report."""
    fields = set(asdict(Plan(1, 1)))
    if any(set(row["plan"]) != fields for row in report["rows"]):
        raise SystemExit("cuts of another form than this kernel's: measure with --variants again")
    by_product: dict[tuple[int, int, bool, int], list[dict[str, Any]]] = {}
    for row in report["rows"]:
        outputs = row["outputs"] // 2 if row["gate"] else row["outputs"]
        key = (outputs, row["inputs"], row["gate"], row_class(row["rows"]))
        by_product.setdefault(key, []).append(row)
    lines = []
    for key, rows in sorted(by_product.items()):
        best = best_of(rows)
        if best is not None:
            plan, own = best["plan"], next((one for one in rows if "us" in one), best)
            early = f', "{plan["early"]}"' if plan["early"] else ""
            cut = f"Plan({plan['tiles']}, {plan['warps']}, {plan['depth']}{early})"
            lines.append(f"    {key!r}: {cut},  # {best['us']:.2f}, {own['us']:.2f}")
    source = f"{report['device']}, torch {report['torch']}, triton {report['triton']}"
    text = "".join(f"{line}\n" for line in lines)
    return f'{HEAD}PLANS: Mapping[Key, Plan] = {{\n{text}}}\n"""{source}."""\n'


def run(options: argparse.Namespace) -> int:
    """Class after class of rows: every cut, then the fastest launched early; 1 where one is wrong.

    What is known is written after each product.
    """
    on_cuda = options.device != "cpu"
    deadline = time.monotonic() + options.seconds
    models = options.models.split(",") if on_cuda else ["rehearsal"]
    report: dict[str, Any] = {
        "argv": sys.argv[1:],
        "device": torch.cuda.get_device_name(options.device) if on_cuda else "cpu",
        "torch": torch.__version__,
        "triton": triton_version(),
        "rows": [],
    }
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        for rows in options.rows.split(","):
            todo = {product: product.plans() for product in products(models, [int(rows)])}
            found = wave(todo, pool, options, report, deadline)
            early = {one: one.early(found[one]) for one in todo if one in found}
            wave(early, pool, options, report, deadline)
        pool.shutdown(cancel_futures=True)
    errors = [one["error"] for one in report["rows"] if "us" in one]
    return int(any(not error <= LARGEST_ERROR for error in errors))


def wave(
    todo: Mapping[Product, list[Plan]],
    pool: ProcessPoolExecutor,
    options: argparse.Namespace,
    report: dict[str, Any],
    deadline: float,
) -> dict[Product, list[dict[str, Any]]]:
    """Compile some cuts of some products, then time them; what was reached."""
    began, bad = time.monotonic(), dict[Pair, str]()
    if options.device != "cpu":
        pairs = [(one, plan) for one, plans in todo.items() for plan in plans]
        bad = compile_all(pairs, pool, options.device, deadline)
        print(f"{len(pairs)} cuts compiled in {time.monotonic() - began:.0f} s", flush=True)
    timer = Timer(torch.device(options.device), options.repeats)
    found: dict[Product, list[dict[str, Any]]] = {}
    for product, plans in todo.items():
        if time.monotonic() > deadline:
            print(f"the {options.seconds:.0f} s are over; not reached: {product} and what follows")
            break
        found[product] = list(sweep(product, plans, options.device, bad, timer))
        print(shown(found[product]), flush=True)
        report["rows"] += found[product]
        if options.out:
            options.out.write_text(json.dumps(report, indent=1) + "\n")
    return found


def triton_version() -> str:
    """Triton's, where it is installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("triton")
    except PackageNotFoundError:
        return ""
