"""Our split-KV kernel on a CUDA device: microseconds a call and bandwidth by number of splits.

Each call is replayed from a CUDA graph of many calls over several layers' caches, so that the cache
of one call is not left in L2 by the call before. Bandwidth counts keys and values read once.

    python benchmarks/decode_attention.py --out decode_attention.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from levers.kernels.split_heuristic import DecodeShape, kv_block_tokens, upstream_splits
from levers.kernels.split_kv import PagedKV, Workspace, decode_attention, plan_splits

PAGE, KV_HEADS, DIM = 128, 8, 128
CACHE_BYTES = 2**28
"""Caches that one graph walks through, well above the L2 of any device."""
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 32)


def caches(batch: int, tokens: int) -> list[PagedKV]:
    per_slot = tokens // PAGE
    size = 2 * 2 * batch * tokens * KV_HEADS * DIM
    layers = max(2, min(16, -(-CACHE_BYTES // size)))
    lengths = torch.full((batch,), tokens, dtype=torch.int32, device="cuda")
    found = []
    for _ in range(layers):
        table = torch.randperm(batch * per_slot, device="cuda").view(batch, per_slot)
        shape = (batch * per_slot, KV_HEADS, PAGE, DIM)
        k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in "kv")
        found.append(PagedKV(k, v, table.to(torch.int32), lengths))
    return found


def microseconds(heads: int, layers: list[PagedKV], tokens: int, splits: int) -> float:
    """Median time of one call inside a graph of two walks over all caches."""
    batch = layers[0].table_BM.shape[0]
    q = torch.randn(batch, heads, DIM, device="cuda", dtype=torch.bfloat16)
    out, workspace = torch.empty_like(q), Workspace(splits, batch, heads, DIM, q.device)
    plan = plan_splits(tokens, kv_block_tokens(DIM), splits)

    def walk() -> None:
        for kv in layers * 2:
            decode_attention(q, kv, plan, out, workspace, "triton")

    walk()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        walk()
    times = []
    for _ in range(20):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / (2 * len(layers)))
    return statistics.median(times[5:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    rows: list[dict[str, Any]] = []
    print(f"{torch.cuda.get_device_name()}, {sms} SMs: us a call (GB/s)")
    print("heads tokens batch  rule", *(f"{n:>13}" for n in SPLITS))
    for heads in asked.heads:
        for tokens in asked.tokens:
            for batch in asked.batch:
                layers = caches(batch, tokens)
                shape = DecodeShape(batch, KV_HEADS, tokens, kv_block_tokens(DIM), sms)
                size = 2 * 2 * batch * tokens * KV_HEADS * DIM
                found = {n: microseconds(heads, layers, tokens, n) for n in SPLITS}
                cells = (f"{us:7.2f} {size / us / 1e3:5.0f}" for us in found.values())
                print(f"{heads:5} {tokens:6} {batch:5} {upstream_splits(shape):5}", *cells)
                row = {"heads": heads, "tokens": tokens, "batch": batch, "us": found}
                rows.append(row | {"bytes": size, "rule": upstream_splits(shape)})
                del layers
    if asked.out:
        report = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
        asked.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
