"""A byte-exact lever that reads raw storage: right alone, wrong with a layout of columns."""

from __future__ import annotations

from experiments.selftest.launches import read_storage
from experiments.selftest.planted_lever import EXACT, Planted
from experiments.selftest.workload import READ
from levers.base import Settings

LEVER = Planted("planted_read", read_storage, EXACT, site=READ, settings=Settings(("off", "on")))
