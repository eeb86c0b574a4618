"""A byte-exact lever that stores the product column by column; its partner reads raw storage."""

from __future__ import annotations

from experiments.selftest.launches import by_columns
from experiments.selftest.planted_lever import EXACT, Planted
from experiments.selftest.workload import LAYOUT
from levers.base import Settings

LEVER = Planted("planted_layout", by_columns, EXACT, site=LAYOUT, settings=Settings(("off", "on")))
