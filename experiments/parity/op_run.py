"""Run one arm of an op case under poison, and say what is wrong with its outputs.

Runs in the measured process. Every call gets fresh outputs filled with NaN, and then with a finite
sentinel: an element that still holds both poisons was never written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from experiments.parity import compare
from levers.base import OpCase

Tensors: TypeAlias = tuple[Tensor, ...]
Call: TypeAlias = Callable[[Tensors, Tensors], None]


@dataclass(frozen=True, slots=True)
class Produced:
    """An arm's outputs on one draw, and what is wrong with how they came about.

    ``differing`` is the first run on the same inputs that gave other bits, if one did.
    """

    outputs: Tensors
    unwritten: str = ""
    changed_inputs: bool = False
    differing: Tensors | None = None

    @property
    def repeats_equal(self) -> bool:
        """Whether all runs on the same inputs gave the same bits."""
        return self.differing is None

    @property
    def variants(self) -> tuple[Tensors, ...]:
        """All different outputs that were seen."""
        return (self.outputs,) if self.differing is None else (self.outputs, self.differing)

    @property
    def misbehaved(self) -> str:
        """What no class forgives, in words; empty if nothing."""
        return self.unwritten or ("it changed its inputs" if self.changed_inputs else "")


def produce(case: OpCase, call: Call, inputs: Tensors, repeats: int) -> Produced:
    """Run an arm on the same inputs under both poisons (and again, if more repeats are asked)."""
    before = [compare.fingerprint(tensor) for tensor in inputs]
    first = poisoned(case, call, inputs, finite=False)
    unwritten, differing = "", None
    for repeat in range(1, max(2, repeats)):
        again = poisoned(case, call, inputs, finite=repeat % 2 == 1)
        if repeat == 1:
            unwritten = _unwritten(first, again)
        if differing is None and not all(map(compare.bit_equal, first, again)):
            differing = again
    changed = before != [compare.fingerprint(tensor) for tensor in inputs]
    return Produced(first, unwritten, changed, differing)


def poisoned(case: OpCase, call: Call, inputs: Tensors, *, finite: bool = False) -> Tensors:
    """One call into poisoned outputs."""
    outputs = case.outputs(inputs)
    for output in outputs:
        compare.poison(output, finite=finite)
    call(inputs, outputs)
    return outputs


def _unwritten(first: Tensors, second: Tensors) -> str:
    for index, (one, other) in enumerate(zip(first, second, strict=True)):
        count = compare.unwritten(one, other)
        if count:
            return f"{count} of {one.numel()} elements of output {index} were not written"
    return ""


def nonfinite_fault(outputs: Tensors, masks: Tensors | None) -> str:
    """Non-finite values at places where no mask allows one, in words; empty if none."""
    for index, output in enumerate(outputs):
        bad = compare.wrongly_nonfinite(output, mask_of(masks, index))
        count = int(bad.sum())
        if count:
            place = compare.first_place(bad)
            return f"{count} non-finite values in output {index}, the first at {place}"
    return ""


def finite_fault(outputs: Tensors, masks: Tensors | None) -> str:
    """Finite values at places where NaN or Inf is right, in words; empty if none."""
    for index, output in enumerate(outputs):
        mask = mask_of(masks, index)
        count = 0 if mask is None else int((torch.isfinite(output) & mask).sum())
        if count:
            return f"{count} finite values in output {index} where NaN or Inf is right"
    return ""


def truth_of(case: OpCase, inputs: Tensors, outputs: Tensors, masks: Tensors | None) -> Tensors:
    """The fp64 truth, checked to be usable.

    Raises:
        ValueError: its shapes differ from the outputs', or it is not finite outside the masks.
    """
    truth = case.truth(inputs)
    if [one.shape for one in truth] != [one.shape for one in outputs]:
        raise ValueError(f"{case.name}: truth and outputs differ in shape")
    fault = nonfinite_fault(truth, masks)
    if fault:
        raise ValueError(f"{case.name}: truth holds {fault}, which no mask allows")
    return truth


def mask_of(masks: Tensors | None, index: int) -> Tensor | None:
    """The mask of one output, if the case has masks."""
    return None if masks is None else masks[index]
