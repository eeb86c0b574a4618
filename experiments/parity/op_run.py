"""Run one arm of an op case under poison, and say what is wrong with its outputs.

Runs in the measured process. Every call gets fresh outputs filled with NaN, and then with a finite
sentinel: an element that still holds both poisons was never written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from experiments.parity import compare
from levers.base import OpCase
from levers.errors import DefectiveLever

Tensors: TypeAlias = tuple[Tensor, ...]
Call: TypeAlias = Callable[[Tensors, Tensors], None]


GOLDEN = 0.6180339887
"""Where in an input one element is changed: at no multiple of a stride that a sample would use."""

STALE_ELEMENTS = 1 << 20
"""Inputs with more elements are not tried: a kept result is a matter of code and not of size."""

VISIBLE_EPS = 64.0
"""A change of truth, in machine epsilons of the output, that every usable candidate shows."""


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


def stale_fault(
    case: OpCase,
    call: Call,
    inputs: Tensors,
    before: tuple[Tensors, Tensors],
    masks: Tensors | None,
) -> str:
    """Whether a result is kept from an earlier call, in words; empty if none is.

    One element of each floating-point input is changed in place, so that neither an address nor a
    sample of the values tells the new inputs from the old. Where fp64 truth then moves visibly, the
    outputs must not be the old ones bit for bit.

    Args:
        case: the case.
        call: the arm.
        inputs: left as they were found.
        before: the arm's outputs and truth on the inputs as they are.
        masks: where outputs may be non-finite.
    """
    outputs, truth = before
    if sum(tensor.numel() for tensor in inputs) > STALE_ELEMENTS:
        return ""
    undo = [(tensor, *found) for tensor in inputs if (found := _change_one(tensor)) is not None]
    try:
        moved = undo and _moves(truth, truth_of(case, inputs, outputs, masks), outputs)
        again = poisoned(case, call, inputs) if moved else ()
    finally:
        for tensor, place, value in undo:
            _put(tensor, place, value)
    if moved and all(map(compare.bit_equal, outputs, again)):
        return "the outputs stayed the same when one element of each input had changed"
    return ""


def _change_one(tensor: Tensor) -> tuple[int, float] | None:
    """Change one finite element of a floating-point tensor; its place, and what was there."""
    if not (tensor.is_floating_point() and tensor.is_contiguous() and tensor.numel()):
        return None
    place = int(tensor.numel() * GOLDEN)
    value = float(tensor.view(-1)[place])
    if not math.isfinite(value):
        return None
    large = abs(value) > torch.finfo(tensor.dtype).max / 4
    _put(tensor, place, 0.0 if large else -2.0 * value or 1.0)
    return place, value


def _put(tensor: Tensor, place: int, value: float) -> None:
    with torch.no_grad():
        tensor.view(-1)[place] = value


def _moves(truth: Tensors, later: Tensors, outputs: Tensors) -> bool:
    """Whether truth moved by more than any rounding of the outputs' dtypes could hide."""
    for one, other, output in zip(truth, later, outputs, strict=True):
        if not output.is_floating_point():
            continue
        seen = (other - one).abs() > VISIBLE_EPS * torch.finfo(output.dtype).eps * one.abs()
        if bool((seen & torch.isfinite(one) & torch.isfinite(other) & (one != 0)).any()):
            return True
    return False


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
        DefectiveLever: its shapes differ from the outputs', or it is not finite outside the masks.
    """
    truth = case.truth(inputs)
    if [one.shape for one in truth] != [one.shape for one in outputs]:
        raise DefectiveLever(
            f"{case.name}: truth and outputs differ in shape", cure="correct the lever's op_cases"
        )
    fault = nonfinite_fault(truth, masks)
    if fault:
        raise DefectiveLever(
            f"{case.name}: truth holds {fault}, which no mask allows",
            cure="correct the lever's op_cases",
        )
    return truth


def mask_of(masks: Tensors | None, index: int) -> Tensor | None:
    """The mask of one output, if the case has masks."""
    return None if masks is None else masks[index]
