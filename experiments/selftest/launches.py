"""What the sites of the self-test's workload launch: the reference's callables and their variants.

Shape suffixes: N rows and columns. Only tensor methods are used, so that nothing here imports
torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

Change: TypeAlias = Callable[[Any, Any], None]
"""Changes an output in place, given the product that is right: ``(out_NN, right_NN)``."""

ROUNDS = 60
"""Products of one step on the wall clock: six more are 10 % of a step of some 0.3 ms."""

SCRATCH_BYTES = 1 << 20
"""Scratch memory of a step of the reference."""

BEYOND_ANY_MACHINE = 1 << 46
"""Bytes: 64 TiB."""


@dataclass(frozen=True, eq=False, slots=True)
class Product:
    """``out_NN = x_NN @ y_NN``, made ``rounds`` times; the site ``selftest.product``.

    Attributes:
        plan: what the witness sees.
        rounds: how many times the product is made, all of it real work.
        cost: what a step costs on the virtual clock; the reference's is 1.
        scratch_bytes: memory that a step allocates beside its output.
        change: what is done to the output at the end; None leaves it right.
        steps: how many steps an answer has at most; None means all that were asked for.
    """

    plan: str = "product"
    rounds: int = ROUNDS
    cost: float = 1.0
    scratch_bytes: int = SCRATCH_BYTES
    change: Change | None = None
    steps: int | None = None

    def __call__(self, x_NN: Tensor, y_NN: Tensor, out_NN: Tensor) -> str:
        """Write the product and return the plan that made it."""
        x_NN.new_empty(self.scratch_bytes // x_NN.element_size())
        right_NN = x_NN @ y_NN
        for _ in range(self.rounds - 1):
            right_NN = x_NN @ y_NN
        if self.change is None:
            out_NN.copy_(right_NN)
        else:
            self.change(out_NN, right_NN)
        return self.plan


def in_halves(out_NN: Tensor, right_NN: Tensor) -> None:
    """The right product, written in two pieces: work that an op case tells from the reference's."""
    for out, right in zip(out_NN.chunk(2), right_NN.chunk(2), strict=True):
        out.copy_(right)


def contiguous(z_NN: Tensor) -> tuple[Tensor, str]:
    """The reference's layout: as the product left it. The site ``selftest.layout``."""
    return z_NN, "layout=rows"


def by_columns(z_NN: Tensor) -> tuple[Tensor, str]:
    """The same values in the same places, stored column by column."""
    return z_NN.t().contiguous().t(), "layout=columns"


def read_rows(z_NN: Tensor, out_F: Tensor) -> str:
    """The reference's read-out, whatever the strides. The site ``selftest.read``."""
    out_F.copy_(z_NN.reshape(-1))
    return "read=rows"


def read_storage(z_NN: Tensor, out_F: Tensor) -> str:
    """Reads the memory as it lies: right where rows are contiguous, wrong for any other layout."""
    in_halves(out_F, z_NN.as_strided((z_NN.numel(),), (1,)))
    return "read=storage"
