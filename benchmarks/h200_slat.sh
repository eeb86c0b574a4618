#!/usr/bin/env bash
# The segment-sum lever at published size: 1.3 B, batch 8, lengths 5601 to 601, one lever at a time.
# Run it again to go on where the time limit ended it: samples are on disk.
cd "$(dirname "$0")/.."
home="${LEVERGATE_HOME:?}"
open=$(for run in "$home"/runs/*/; do [ ! -d "$run" ] || [ -f "$run/verdict.json" ] || basename "$run"; done 2>/dev/null | tail -1)
limit="${1:-560}"
exec timeout -s INT "$limit" benchmarks/device.sh python3 cli.py ab segment_sum_broadcast \
    --ref off --cand on --device cuda:0 --size xl --set steps=5 --set warmup=2 --pairs 6 --yes ${open:+--resume "$open"}
