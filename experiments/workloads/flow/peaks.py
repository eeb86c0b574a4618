"""Dense bf16 peak rates by device name, as their makers state them.

Datasheets print the rate with 2:4 sparsity; the dense rate is half of it. Keys are parts of the
names that the CUDA driver reports. A device that is not listed has no stated peak here: its MFU is
then taken against the measured rate of a large matrix product in the same run.
"""

from __future__ import annotations

DENSE_BF16_FLOP_PER_S: tuple[tuple[str, float], ...] = (
    ("H200", 989.4e12),  # NVIDIA H200 datasheet (SXM): 1,979 TFLOP/s with sparsity
    ("H100 80GB HBM3", 989.4e12),  # NVIDIA H100 datasheet, SXM: 1,979 TFLOP/s with sparsity
    ("H100 PCIe", 756.0e12),  # NVIDIA H100 PCIe product brief: 1,513 TFLOP/s with sparsity
    ("H100 NVL", 835.5e12),  # NVIDIA H100 datasheet, NVL: 1,671 TFLOP/s with sparsity
    ("A100", 312.0e12),  # NVIDIA A100 datasheet: 312 TFLOP/s dense
    ("L40S", 362.05e12),  # NVIDIA L40S datasheet: 362.05 TFLOP/s dense
    ("L4", 121.0e12),  # NVIDIA L4 datasheet: 242 TFLOP/s with sparsity
)


def dense_peak_flop_per_s(device_name: str) -> float | None:
    """The stated dense bf16 rate of a device, or None where none is known."""
    words = device_name.split()
    for name, rate in DENSE_BF16_FLOP_PER_S:
        parts = name.split()
        if any(words[i : i + len(parts)] == parts for i in range(len(words))):
            return rate
        if name == "A100" and any(word.startswith("A100") for word in words):
            return rate
    return None
