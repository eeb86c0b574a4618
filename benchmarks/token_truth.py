"""How often greedy streams part from the reference's, and how often each arm leaves those of fp64.

    python -m benchmarks.token_truth --levers fused_block=early [--levers qk_norm_rope=on]
        [--model shipped] [--beside cuda_graph=on] [--prompts 184] [--concurrency 32]
        [--alone 32] [--set KEY=VALUE] [--device cuda:0] [--out FILE]

One process, all sets of levers one after the other: what the token check of ``levergate ab`` counts
in processes of its own, without its verdict. For each set the streams that part from the
reference's, alone and under load, the departures of both arms from fp64's streams under load, each
prompt once, and the ratio of their rates with the chance of so many at the bound (no ratio where
the reference never leaves them). Levers named with ``--beside`` are on in both.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.arguments import answered, assignment, natural
from benchmarks.decode_steps import settings
from experiments.environment import find_device
from experiments.parity.streams import apart
from experiments.parity.token_truth import WANT, of_arms
from experiments.tasks import Outputs
from experiments.workloads.decode.session import DecodeSession, open_session
from experiments.workloads.decode.workload import DECODE
from levers import catalog
from levers.base import engaged


@contextlib.contextmanager
def on(session: DecodeSession, *levers: str) -> Iterator[None]:
    """The session with the levers on, its graphs dropped on both sides."""
    with contextlib.ExitStack() as stack:
        for name, setting in (one for text in levers for one in settings(text)):
            stack.enter_context(engaged(catalog.get(name), session.sites, setting))
        session.renew()
        yield
    session.renew()


def modes(asked: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What is decoded alone and under load."""
    common = {"want": "tokens", "prompts": asked.prompts}
    return {
        "alone": {**common, "concurrency": 1, "max_tokens": asked.alone},
        "loaded": {**common, "concurrency": asked.concurrency},
    }


def row(levers: str, ref: Sequence[Outputs], cand: Sequence[Outputs], truth: Outputs) -> Any:
    """The counts of one set of levers."""
    found = of_arms(ref[-1], cand[-1], truth)
    return {
        "levers": levers,
        "streams": sum(len(one.streams) for one in ref),
        "parted": [len(apart(one, other)) for one, other in zip(ref, cand, strict=True)],
        **found.figures(),
        "ratio": found.ratio if found.ref.parted else None,
        "p_further": found.p_further,
    }


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="shipped")
    parser.add_argument("--levers", action="append", required=True, metavar="A=ON,B=ON")
    parser.add_argument("--beside", default="none", metavar="A=ON,B=ON", help="on in both arms")
    parser.add_argument("--prompts", type=natural, default=184)
    parser.add_argument("--concurrency", type=natural, default=32)
    parser.add_argument("--alone", type=natural, default=32, help="tokens of a stream alone")
    parser.add_argument("--set", action="append", type=assignment, default=[], metavar="KEY=VALUE")
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(arguments)
    if asked.out and not asked.out.parent.is_dir():
        parser.error(
            f"--out {asked.out}: the folder {asked.out.parent} is not there; make it first"
        )
    return asked


def main(arguments: Sequence[str]) -> None:
    asked = parsed(arguments)
    device = find_device(asked.device)
    wanted = dict(asked.set) | {"model": asked.model}
    wanted |= {"concurrency": str(asked.concurrency), "quality": "on", "graph": "off"}
    session = open_session(DECODE.resolve(wanted, device.facts), device.facts.device, 1, "engine")
    rows, asking = [], modes(asked)
    with on(session, asked.beside):
        began = time.monotonic()
        ref = [session.outputs(one) for one in asking.values()]
        decoded = time.monotonic()
        truth = session.outputs({**asking["loaded"], "want": WANT})
        seconds = {"reference": decoded - began, "truth": time.monotonic() - decoded}
    print(
        f"{device.facts.kind}: reference {seconds['reference']:.1f} s, fp64 {seconds['truth']:.1f}"
    )
    print(
        f"{'levers':32}{'parted':>14}{'ref, cand leave fp64':>24}{'ratio':>8}{'p':>8}", flush=True
    )
    for levers in asked.levers:
        with on(session, asked.beside, levers):
            cand = [session.outputs(one) for one in asking.values()]
        found = row(levers, ref, cand, truth)
        rows.append(found)
        left = f"{found['truth_left_by_reference']}, {found['truth_left_by_candidate']}"
        ratio = "-" if found["ratio"] is None else f"{found['ratio']:.2f}"
        print(
            f"{levers:32}{found['parted']!s:>14}{left:>24}{ratio:>8}{found['p_further']:8.2g}",
            flush=True,
        )
        if asked.out:
            report = {"device": device.facts.kind, "argv": list(arguments), "seconds": seconds}
            asked.out.write_text(json.dumps(report | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    answered("token_truth", lambda: main(sys.argv[1:]))
