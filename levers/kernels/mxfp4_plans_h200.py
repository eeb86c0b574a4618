"""Cuts of MXFP4 products measured on a device (written by ``mxfp4_gemv.py --write``; torch-free).

Outputs, inputs, gate, rows; tiles, warps, early; microseconds a call with it and by the rule.
"""

from __future__ import annotations

from collections.abc import Mapping

from levers.kernels.mxfp4_plans import Key, Plan

PLANS: Mapping[Key, Plan] = {}
