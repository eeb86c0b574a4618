"""How an MXFP4 product is cut into programs: a measured table by shape, and a rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from levers.kernels.mxfp4_layout import TILE_OUTPUTS, UNIT_INPUTS

UNIT_BYTES = TILE_OUTPUTS * UNIT_INPUTS * 17 // 32
SMS = 132
"""Of an H200."""
WARPS_AN_SM = 10
"""That the rule wants: fewer leave an SM's four schedulers waiting for the results of decoding."""
UNDER_WAY_BYTES = 36 << 10
"""On an SM, that the rule wants: 4.3 TB/s at 0.7 us are 23 KB; a loaded memory answers later."""
WARPS = (2, 4, 8)
"""Of a program. Each warp adds the same set-up and sum, as much as decoding one unit."""
ROW_CLASSES = (1, 8, 16, 32)
"""Rows for which plans are kept: a number of rows takes the next class."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a product is cut.

    Attributes:
        tiles: of 16 outputs of one program, a power of two; gated, as many of each half.
        warps: of one program, a power of two up to 8; they share its inputs.
        depth: steps of a warp whose weights are on their way at any time.
        early: programmatic dependent launch, where it is not empty: the first weights are asked for
            while the launch before still runs. ``start``: and the next launch may begin at once;
            ``end``: after the products.
    """

    tiles: int
    warps: int
    depth: int = 2
    early: str = ""

    def __str__(self) -> str:
        return f"{self.tiles}x{self.warps}x{self.depth}" + (f" {self.early}" * bool(self.early))

    def programs(self, outputs: int) -> int:
        """Programs of a product with so many outputs (gated: results)."""
        return -(-outputs // (TILE_OUTPUTS * self.tiles))


Key = tuple[int, int, bool, int]
"""Outputs (of a gated product: results), inputs, gate, class of rows."""


def row_class(rows: int) -> int:
    """The class of a number of rows, 1 to 32."""
    return next(size for size in ROW_CLASSES if size >= rows)


def rule(outputs: int, inputs: int, rows: int, *, gate: bool) -> Plan:
    """A cut from the shape alone: few warps a program where there are programs enough.

    From 9 rows on a program has two tiles, so that the activations, which every program reads, are
    not read more often than the weights. Depth is what brings enough bytes under way, within the
    registers, where a unit takes 9 of a lane; of such depths, the one that leaves the fewest steps
    of its last round empty.
    """
    tiles = 1 if rows <= 8 or gate else 2
    programs, units = Plan(tiles, 1).programs(outputs), -(-inputs // UNIT_INPUTS)
    fitting = [warps for warps in WARPS if warps <= max(units, WARPS[0])]
    filling = [warps for warps in fitting if programs * warps >= SMS * WARPS_AN_SM]
    warps = filling[0] if filling else fitting[-1]
    most = 1 if rows > 16 else 2 if rows > 8 else 3 if gate else 5
    step_bytes = programs * warps * tiles * (2 if gate else 1) * UNIT_BYTES // SMS
    return Plan(tiles, warps, depth_of(-(-units // warps), most, -(-UNDER_WAY_BYTES // step_bytes)))


def depth_of(steps: int, most: int, wanted: int) -> int:
    """The depth from ``wanted`` to ``most`` whose rounds leave the fewest of their steps empty."""
    first = min(wanted, most, steps)
    return min(range(first, min(most, steps) + 1), key=lambda depth: -steps % depth)


def even_depth(steps: int, most: int) -> int:
    """The depth of equal rounds that together make the steps, none deeper than ``most``."""
    rounds = -(-steps // most)
    return -(-steps // rounds)


def plan_of(
    outputs: int, inputs: int, rows: int, *, gate: bool, table: Mapping[Key, Plan] | None = None
) -> Plan:
    """The measured cut of a shape, or the rule's."""
    if table is None:
        from levers.kernels import mxfp4_plans_h200

        table = mxfp4_plans_h200.PLANS
    found = table.get((outputs, inputs, gate, row_class(rows)))
    return found or rule(outputs, inputs, rows, gate=gate)
