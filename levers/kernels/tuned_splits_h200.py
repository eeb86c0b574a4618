"""Split counts measured on a device (written by ``split_table.py --write``; torch-free).

Each row: query heads, tokens, batch, the count to take (0: the backend's own rule), and
microseconds a call with it, by the backend's own rule and of the fastest count. bf16, D = 128.
"""

from __future__ import annotations

from levers.kernels.tuned_splits_table import TunedRow, TunedTable

TABLES: tuple[TunedTable, ...] = (
    TunedTable(
        device="NVIDIA H200",
        sm_count=132,
        backend="fa2",
        kv_heads=8,
        kv_block=128,
        source="flash-attn 2.8.3.post2, torch 2.11.0+cu130, cache layout not recorded, 2026-11-29",
        rows=(
            TunedRow(16, 4096, 32, 2, 137.34, 209.7, 137.34),
            TunedRow(32, 512, 1, 0, 8.86, 8.86, 8.86),
            TunedRow(32, 1024, 4, 4, 11.72, 12.65, 11.72),
            TunedRow(32, 1024, 32, 2, 44.46, 51.04, 44.46),
            TunedRow(32, 4096, 1, 16, 14.17, 17.42, 14.17),
            TunedRow(32, 4096, 4, 8, 25.73, 27.03, 25.73),
            TunedRow(32, 4096, 32, 2, 135.6, 192.71, 135.6),
        ),
    ),
    TunedTable(
        device="NVIDIA H200",
        sm_count=132,
        backend="fa3",
        kv_heads=8,
        kv_block=128,
        source="tokenspeed-fa3, torch 2.11.0+cu130, cache layout not recorded, 2026-11-29",
        rows=(
            TunedRow(16, 1024, 1, 16, 12.17, 13.75, 12.17),
            TunedRow(16, 4096, 32, 16, 139.12, 140.72, 139.12),
            TunedRow(32, 512, 1, 6, 11.93, 13.28, 11.93),
            TunedRow(32, 1024, 4, 12, 14.78, 14.89, 14.78),
            TunedRow(32, 1024, 32, 1, 42.77, 44.29, 42.77),
            TunedRow(32, 2048, 1, 16, 12.85, 13.75, 12.85),
            TunedRow(32, 2048, 4, 0, 18.84, 18.84, 18.84),
            TunedRow(32, 4096, 1, 0, 15.47, 15.47, 15.47),
            TunedRow(32, 4096, 4, 6, 27.08, 27.33, 27.08),
            TunedRow(32, 4096, 32, 16, 138.74, 140.14, 138.74),
            TunedRow(32, 8192, 1, 0, 19.23, 19.23, 19.2),
            TunedRow(32, 8192, 8, 0, 74.58, 74.58, 74.52),
        ),
    ),
)
