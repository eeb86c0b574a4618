"""The rehearsal of :mod:`.h200_decode` on a CPU: a minute or so a step, with a row of its own."""

from __future__ import annotations

from pathlib import Path

from benchmarks.h200_decode_steps import Scale

SMALL = {
    "concurrency": "1,2",
    "prompt_tokens": "64",
    "output_tokens": "12",
    "rounds": "2",
    "round_steps": "10",
    "ttft_repeats": "20",
    "ttft_tokens": "16",
    "kv_block": "16",
    "page_size": "16",
}

REHEARSAL = Scale(
    "cpu",
    small="shipped",
    large="shipped",
    row={**SMALL, "prompt_tokens": "96"},
    large_row={},
    tokens=SMALL,
    train=("--size", "shipped", "--steps", "3"),
    campaign="decode-rehearsal",
    oracle="sdpa",
    absent=("cuda_graph", "fused_block", "fused_chain", "decode_attn"),
    swapped={"fa2_nsplits_cap": "auto"},
    graphs=False,
    counts="auto,2",
    parity=(2, 1),
    text=str(Path(__file__).resolve().parents[1] / "experiments"),
)

CAMPAIGN = """# A small row on the CPU, so that the driver is rehearsed with a campaign of its own.
name = "decode-rehearsal"
summary = "a rehearsal"
workload = "decode"
device = "cpu"
oracle = "sdpa"
lever_budget = "1m"
blocks = 4

[parameters]
{parameters}
[[axes]]
axis = "decode/tok_s/c1"

[[levers]]
lever = "fa2_nsplits_cap"
candidates = ["auto"]
pairs = 6

[[paths]]
name = "mxfp4_weights"
state = "declined"
reason = "its quality is not rehearsed"

[[paths]]
name = "qk_norm_rope"
state = "declined"
reason = "it takes as long once more"
"""


def rehearsed_campaign(scale: Scale) -> str:
    """The rehearsal's campaign file."""
    given = {"model": scale.small, **scale.row}
    return CAMPAIGN.format(parameters="".join(f'{k} = "{v}"\n' for k, v in given.items()))
