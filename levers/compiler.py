"""What levers share that run parts of a flow block through ``torch.compile``.

Its source belongs to the digest of each lever built on it (:mod:`levers.source`).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Sequence
from typing import Any

from levers.base import OFF, Facts, OpCase, Settings, Site
from levers.site_lever import ON
from levers.step_lever import StepLever

TUNED = "max-autotune-no-cudagraphs"
SITE = "flow.block"

COMPILE_S = 60.0
"""Seconds. A first compilation takes about a minute, and more on few cores."""


class CompiledFlow(StepLever):
    """Swaps the callable of the block site for one that runs compiled parts.

    Attributes:
        packed: whether it is for packed batches, whose token counts change from step to step.
        other: the lever for the other kind of batch.
        compile_s: what a first process spends on compiling, in seconds.
    """

    settings = Settings((OFF, ON, TUNED))
    touches = (SITE,)
    compile_s = COMPILE_S
    packed: bool
    other: str

    def unmet(self, facts: Facts, setting: str) -> tuple[str, ...]:
        """It needs the block site, its own kind of batch, and what the code generator needs.

        On CUDA also rows in bf16. In fp32 the gradient of a scale with one loud channel, a sum over
        4,096 rows, came out 3.04 times as far from truth as the original's (7.2e-7, on an H200).
        """
        if setting == OFF:
            return ()
        reasons = [] if SITE in facts.sites else [f"{facts.workload} has no site {SITE}"]
        dense = facts.parameters.get("profile", "" if self.packed else "dense") == "dense"
        if dense == self.packed:
            reasons.append(f"the batch is {'dense' if dense else 'packed'}: use {self.other}")
        asked = facts.parameters.get("matmul", "bf16")
        if facts.device_type == "cuda" and asked != "bf16":
            reasons.append(
                f"the compiler's fp32 sums over rows are less exact, and matmul={asked} keeps fp32"
            )
        return (*reasons, *missing_compiler(facts.device_type))

    def operation(self, site: Site, setting: str) -> Callable[..., Any]:
        """The compiled block: its parts are the block's own, whatever ran it before."""
        del site
        from levers.kernels.compiled_block import CompiledBlock

        return CompiledBlock(dynamic=self.packed, mode="default" if setting == ON else setting)

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        """The row-wise chain of a block, forward and backward, compiled and not."""
        from levers.kernels.compiled_block_cases import op_cases

        return op_cases(setting, device, packed=self.packed)


def missing_compiler(device_type: str) -> tuple[str, ...]:
    """Why no code can be generated for this kind of device; empty where it can.

    PyTorch's code generator writes Triton for CUDA and C++ for a CPU.
    """
    if device_type == "cuda":
        found = importlib.util.find_spec("triton") is not None
        return () if found else ("torch.compile on CUDA needs triton, which is not installed",)
    names = (os.environ.get("CXX", ""), "g++", "clang++")
    if any(name and shutil.which(name) for name in names):
        return ()
    return ("torch.compile on a CPU needs a C++ compiler (g++ or clang++), none was found",)
