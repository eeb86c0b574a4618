"""Forward op cases of the decode kernels: tensors drawn, changed into adversarial ones, compared.

The inputs of a case are drawn in fp32 on the CPU, so that every device gets the same, changed by
the case's fill, and rounded to its dtype. Truth is the same formula on the same inputs in fp64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from levers.base import OpCase

Tensors = tuple[Tensor, ...]
Call = Callable[[Tensors], Tensors]
"""Inputs to results."""
Fill = Callable[[Tensors], None]
"""Changes the inputs (fp32, standard normal) in place into the case's values."""


@dataclass(frozen=True)
class ForwardCase:
    """One case; its methods are the callables of an :class:`levers.base.OpCase`.

    Attributes:
        shapes: of the inputs, in their order.
        scales: what each input, drawn standard normal, is multiplied by; None draws 1 + N(0, 0.1),
            as the weights of a norm are.
        original: the operation as published, in the inputs' dtype; in fp64 it is truth.
        fused: ours.
    """

    shapes: tuple[tuple[int, ...], ...]
    scales: tuple[float | None, ...]
    original: Call
    fused: Call
    dtype: torch.dtype
    device: str
    fill: Fill | None = None

    def inputs(self, seed: int) -> Tensors:
        """Drawn, filled, rounded, moved."""
        generator = torch.Generator().manual_seed(seed)
        drawn = tuple(
            _drawn(shape, scale, generator)
            for shape, scale in zip(self.shapes, self.scales, strict=True)
        )
        if self.fill is not None:
            self.fill(drawn)
        return tuple(one.to(self.device, self.dtype) for one in drawn)

    def outputs(self, inputs: Tensors) -> Tensors:
        """Room for the results."""
        return tuple(torch.empty_like(one, dtype=self.dtype) for one in self.truth(inputs))

    def reference(self, inputs: Tensors, outputs: Tensors) -> None:
        """The original's results."""
        _store(self.original(inputs), outputs)

    def candidate(self, inputs: Tensors, outputs: Tensors) -> None:
        """The fused results."""
        _store(self.fused(inputs), outputs)

    def truth(self, inputs: Tensors) -> Tensors:
        """The results in fp64, of wild inputs on the CPU.

        PyTorch's norm in fp64 on CUDA (Welford's sums) makes NaN of a whole row with an infinity;
        the formula, and its norm in bf16, make it of the infinite element alone.
        """
        wide = tuple(one.double() for one in inputs)
        if all(bool(torch.isfinite(one).all()) for one in wide):
            return self.original(wide)
        results = self.original(tuple(one.cpu() for one in wide))
        return tuple(one.to(self.device) for one in results)

    def wild(self, inputs: Tensors) -> Tensors:
        """Where the true results are not finite."""
        return tuple(~torch.isfinite(one) for one in self.truth(inputs))

    def named(self, name: str, *, masked: bool = False) -> OpCase:
        """As an op case; ``masked`` where non-finite results are right."""
        return OpCase(
            name=name,
            inputs=self.inputs,
            outputs=self.outputs,
            reference=self.reference,
            candidate=self.candidate,
            truth=self.truth,
            masks=self.wild if masked else None,
            elements=sum(torch.Size(shape).numel() for shape in self.shapes),
        )


def _drawn(shape: tuple[int, ...], scale: float | None, generator: torch.Generator) -> Tensor:
    values = torch.randn(shape, generator=generator)
    return 1 + 0.1 * values if scale is None else values * scale


def _store(results: Tensors, outputs: Tensors) -> None:
    for output, result in zip(outputs, results, strict=True):
        output.copy_(result)


def word(dtype: torch.dtype) -> str:
    """``bfloat16``."""
    return str(dtype).removeprefix("torch.")
