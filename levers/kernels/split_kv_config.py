"""How the Triton split-KV kernel is laid out: tiles, warps, stages, where partials are merged.

What a layout decides, at one query token and a piece of a few hundred tokens:

- ``rows``: the query heads of a KV head are the rows of one tile. 16 is the least of a tensor-core
  product, which then reads keys through registers; at 64 Hopper's warp-group product reads keys and
  values straight from shared memory and leaves each row's scores inside four threads, at the price
  of exponentials over padding.
- ``tile``: tokens of an iteration. A piece of 128 tokens is one iteration of 128 or two of 64: each
  iteration is a chain of product, maximum, exponential, product.
- ``stages``: buffers of the software pipeline, so how many tiles are under way. 132 SMs at 4.3 TB/s
  take 33 bytes a nanosecond each, and memory answers after about 700 ns: 23 kB an SM have to be
  under way, where a tile of 64 tokens of keys and values (bf16, 128 wide) is 33 kB.
- ``merge``: ``launch`` merges in a second kernel, ``last`` in the program of a KV head that arrives
  last, which saves the second launch and costs an atomic and a wait for the level-two cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class SplitConfig:
    """One layout of the kernel; the head of this module says what each part decides."""

    rows: int = 16
    tile: int = 64
    warps: int = 4
    stages: int = 3
    merge: Literal["launch", "last"] = "launch"

    @property
    def name(self) -> str:
        """As the benchmark shows it and takes it."""
        return f"r{self.rows}t{self.tile}w{self.warps}s{self.stages}-{self.merge}"


DEFAULT = SplitConfig()
"""For 16-bit types."""
WIDE = SplitConfig(stages=2)
"""For fp32, whose tiles are twice as large and whose products are not rounded to tf32."""

CANDIDATES = (
    DEFAULT,
    SplitConfig(merge="last"),
    SplitConfig(stages=2),
    SplitConfig(stages=4, merge="last"),
    SplitConfig(tile=128, warps=4, stages=2, merge="last"),
    SplitConfig(tile=128, warps=8, stages=2, merge="launch"),
    SplitConfig(tile=128, warps=8, stages=2, merge="last"),
    SplitConfig(tile=128, warps=8, stages=3, merge="last"),
    SplitConfig(rows=64, tile=64, stages=3, merge="launch"),
    SplitConfig(rows=64, tile=64, stages=3, merge="last"),
    SplitConfig(rows=64, tile=128, stages=2, merge="last"),
    SplitConfig(tile=32, warps=2, stages=4, merge="last"),
)
"""What the benchmark tries."""


def config_named(name: str) -> SplitConfig:
    """The candidate of a name.

    Raises:
        ValueError: there is none.
    """
    for one in CANDIDATES:
        if one.name == name:
            return one
    raise ValueError(f"no layout {name!r}; there are {', '.join(c.name for c in CANDIDATES)}")
