"""The table of the training step on all GPUs of a host, as text and as the page beside its JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.several_gpus_steps import CLOSED_FORM, HEAD, PUBLIC, line
from experiments.spec import DEEPSPEED, ZERO


def report(found: Mapping[str, Any]) -> str:
    """All that is known, as text: a line for each point, then what was asked beside."""
    rows = [one for name, one in found.items() if name.startswith("step ")]
    return "\n".join([HEAD, *(line(row, rows) for row in rows), *_beside(found)])


def _beside(found: Mapping[str, Any]) -> Iterator[str]:
    for name, one in found.items():
        if name.startswith("largest "):
            seen = one["measured_share"]
            shown = "not measured" if seen is None else f"measured {100 * seen:.1f} %"
            yield (
                f"{name}: {one['bs']} a GPU by {one.get('source', CLOSED_FORM)}, "
                f"{100 * one['expected_share']:.1f} % of the device; {shown}, "
                f"target {100 * one['target_share']:.0f} %"
            )
        elif name == "failing rank":
            yield f"a rank that fails: {'as wanted' if one['right'] else 'WRONG'}, {one['message']}"
        elif name == "verdict":
            yield f"A/B of {', '.join(one['levers'])}: {one.get('headline', one.get('outcome'))}"


def _divided(found: Mapping[str, Any]) -> str:
    """How gradients and the optimiser's state go over the ranks."""
    if found.get("set", {}).get(ZERO) != DEEPSPEED:
        return "DDP and ZeRO-1"
    return f"DeepSpeed {found['stack'].get(DEEPSPEED, '')} with ZeRO-1"


def page(found: Mapping[str, Any]) -> str:
    """The Markdown page: where it was measured, with which levers, and the table."""
    device, levers = found["device"], ", ".join(found["levers"]) or "none"
    several = device["ranks"] > 1
    gpus = f"{device['ranks']} GPUs of one host" if several else "one GPU"
    settings = dict(PUBLIC) | found.get("set", {})
    given = " ".join(f"{name}={value}" for name, value in settings.items())
    divided = f" One process each, {_divided(found)}." if several else ""
    return (
        f"# The training step on {gpus}\n\n"
        f"Made by `python -m benchmarks.several_gpus`. {device['kind']}, 1.3 B parameters, "
        f"bf16 autocast, {given}.{divided} Levers on in every line of the table: {levers}.\n\n"
        "Columns: batch a GPU, step, tokens a second of all GPUs, true and matmul-only MFU, peak "
        "memory a GPU, what the closed form of the original step says, published memory, rate "
        "against as many single GPUs, share of communication.\n\n"
        f"```\n{report(found)}\n```\n"
    )
