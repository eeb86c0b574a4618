"""How an MXFP4 product is cut into programs: a measured table by shape, and a rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from levers.kernels.mxfp4_layout import TILE_OUTPUTS, UNIT_INPUTS

SMS = 132
"""Of an H200."""
WARPS_AN_SM = 8
"""That the rule wants: with 2.2 KB asked for by each, 18 KB an SM at least."""
WARPS = (4, 8, 16)
ROW_CLASSES = (1, 8, 16, 32)
"""Rows for which plans are kept: a number of rows takes the next class."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a product is cut.

    Attributes:
        tiles: of 16 outputs of one program, a power of two; gated, as many of each half.
        warps: of one program, a power of two; they share its inputs.
        early: programmatic dependent launch: the first weights are asked for while the launch
            before still runs.
    """

    tiles: int
    warps: int
    early: bool = False

    def __str__(self) -> str:
        return f"{self.tiles}x{self.warps}" + (" early" if self.early else "")

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
    not read more often than the weights; 16 warps of such a program have no room in the registers.
    """
    tiles = 1 if rows <= 8 or gate else 2
    programs, units = Plan(tiles, 1).programs(outputs), -(-inputs // UNIT_INPUTS)
    most = max(units, WARPS[0]) if tiles == 1 and rows <= 8 else WARPS[1]
    fitting = [warps for warps in WARPS if warps <= most]
    filling = [warps for warps in fitting if programs * warps >= SMS * WARPS_AN_SM]
    return Plan(tiles, filling[0] if filling else fitting[-1])


def plan_of(
    outputs: int, inputs: int, rows: int, *, gate: bool, table: Mapping[Key, Plan] | None = None
) -> Plan:
    """The measured cut of a shape, or the rule's."""
    if table is None:
        from levers.kernels import mxfp4_plans_h200

        table = mxfp4_plans_h200.PLANS
    found = table.get((outputs, inputs, gate, row_class(rows)))
    return found or rule(outputs, inputs, rows, gate=gate)
