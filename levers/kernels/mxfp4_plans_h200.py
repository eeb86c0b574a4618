"""Cuts of MXFP4 products measured on a device (written by ``mxfp4_gemv --write``).

By outputs, inputs, gate and rows; beside each, microseconds a call with it and by the rule.
"""

from __future__ import annotations

from collections.abc import Mapping

from levers.kernels.mxfp4_plans import Key, Plan

PLANS: Mapping[Key, Plan] = {
    (1024, 2048, False, 1): Plan(1, 8, 2, "end"),  # 1.92, 2.85
    (1024, 2048, False, 8): Plan(1, 8, 2, "end"),  # 2.34, 3.40
    (1024, 2048, False, 32): Plan(1, 4, 2, "end"),  # 5.10, 9.37
    (1024, 3072, False, 1): Plan(1, 8, 3, "end"),  # 2.36, 3.29
    (1024, 3072, False, 8): Plan(1, 8, 3, "end"),  # 2.66, 3.86
    (1024, 3072, False, 32): Plan(1, 8, 2, "end"),  # 6.47, 10.81
    (2560, 4096, False, 1): Plan(1, 8, 4, "end"),  # 4.20, 5.23
    (2560, 4096, False, 8): Plan(1, 8, 4, "end"),  # 4.83, 6.05
    (2560, 4096, False, 32): Plan(2, 4, 1, "end"),  # 10.78, 12.78
    (2560, 9728, False, 1): Plan(1, 8, 10, "start"),  # 7.43, 10.69
    (2560, 9728, False, 8): Plan(1, 8, 10, "end"),  # 9.35, 11.96
    (2560, 9728, False, 32): Plan(2, 8, 2, "end"),  # 19.23, 20.22
    (3072, 1024, True, 1): Plan(1, 8, 1, "end"),  # 3.39, 4.66
    (3072, 1024, True, 8): Plan(1, 4, 2, "end"),  # 4.21, 6.89
    (3072, 1024, True, 32): Plan(1, 4, 2),  # 8.12, 14.95
    (4096, 1024, False, 1): Plan(1, 8, 1, "end"),  # 2.75, 3.95
    (4096, 1024, False, 8): Plan(1, 4, 2, "end"),  # 3.26, 5.16
    (4096, 1024, False, 32): Plan(1, 4, 1),  # 6.33, 9.56
    (6144, 2560, False, 1): Plan(1, 4, 5, "start"),  # 5.19, 6.89
    (6144, 2560, False, 8): Plan(1, 4, 5, "end"),  # 6.11, 7.31
    (6144, 2560, False, 32): Plan(1, 4, 1),  # 11.71, 21.76
    (9728, 2560, True, 1): Plan(1, 8, 3, "start"),  # 13.44, 15.46
    (9728, 2560, True, 8): Plan(1, 4, 5, "end"),  # 14.79, 16.59
    (9728, 2560, True, 32): Plan(1, 4, 1, "end"),  # 23.18, 25.05
    (151936, 1024, False, 1): Plan(2, 8, 1),  # 26.27, 54.35
    (151936, 1024, False, 8): Plan(2, 4, 2, "end"),  # 34.90, 57.28
    (151936, 1024, False, 32): Plan(2, 2, 1),  # 73.01, 73.01
    (151936, 2560, False, 1): Plan(2, 4, 5),  # 56.31, 131.05
    (151936, 2560, False, 8): Plan(2, 4, 5),  # 61.02, 133.90
    (151936, 2560, False, 32): Plan(2, 2, 1),  # 144.49, 144.49
}
"""NVIDIA H200, torch 2.11.0+cu130, triton 3.6.0."""
