"""Tensors against fp64 truth, in chunks of bounded memory (runs in the measured process only).

An error is summed over elements (``norm``), kept per row (``row_p99``; a row is the last
dimension) and put in units of the last place of the output's dtype (``ulps``), so that two sums
that work can be told from a wrong one at every scale. Non-finite values are never averaged away:
they are counted by place before any difference is taken.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 20
"""Elements compared at a time: about 40 MiB of fp64 temporaries."""

ROW_SHARE = 0.99
"""The percentile of the row errors (design: parity classes)."""

SENTINEL = -1729.0
"""The second poison: finite, so that a kernel which adds to its output is caught as well."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: Tensor) -> Tensor:
    """The tensor's bytes as integers of the same width, so that NaN equals NaN and -0 is not 0."""
    flat = tensor.detach().contiguous()
    if flat.is_complex():
        flat = torch.view_as_real(flat)
    return flat.view(_INTEGERS[flat.element_size()])


def bit_equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and bytes."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(bits(one), bits(other))


def sha256(tensor: Tensor) -> str:
    """SHA-256 of a tensor's bytes, copied to the host a chunk at a time."""
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    for part in torch.split(bits(tensor).reshape(-1), CHUNK_ELEMENTS * 8):
        digest.update(part.cpu().numpy().tobytes())
    return digest.hexdigest()


def fingerprint(tensor: Tensor) -> tuple[int, int]:
    """A checksum of a tensor's bytes, made on its own device: was it changed?"""
    flat = bits(tensor).reshape(-1)
    if flat.device.type == "cpu":
        return zlib.crc32(flat.numpy().data), flat.numel()
    plain = weighted = 0
    for part in torch.split(flat, CHUNK_ELEMENTS):
        values = part.to(torch.int64)
        places = torch.arange(1, values.numel() + 1, device=values.device)
        plain += int(values.sum())
        weighted = 31 * weighted + int((values * places).sum())
    return plain, weighted


def poison(tensor: Tensor, *, finite: bool) -> None:
    """Fill an output with NaN (or the sentinel), or an integer's lowest (or highest) value."""
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(_sentinel(tensor.dtype) if finite else math.nan)
    elif tensor.dtype is torch.bool:
        tensor.fill_(finite)
    else:
        limits = torch.iinfo(tensor.dtype)
        tensor.fill_(limits.max if finite else limits.min)


def _sentinel(dtype: torch.dtype) -> float:
    real = torch.float32 if dtype.is_complex else dtype
    return max(SENTINEL, torch.finfo(real).min)


def unwritten(first: Tensor, second: Tensor) -> int:
    """Elements that still hold the first poison in one run and the second poison in the next."""
    held = torch.ones(bits(first).shape, dtype=torch.bool, device=first.device)
    for tensor, finite in ((first, False), (second, True)):
        blank = torch.empty(1, dtype=tensor.dtype, device=tensor.device)
        poison(blank, finite=finite)
        held &= bits(tensor) == bits(blank).reshape(-1)[0]
    return int(held.sum())


def wrongly_nonfinite(tensor: Tensor, mask: Tensor | None) -> Tensor:
    """True at the non-finite values that the mask does not allow."""
    bad = ~torch.isfinite(tensor)
    return bad if mask is None else bad & ~mask


def first_place(flags: Tensor) -> str:
    """The index of the first True, such as ``[0, 3, 17]``."""
    flat = int(flags.reshape(-1).to(torch.uint8).argmax())
    place: list[int] = []
    for size in reversed(flags.shape):
        place.insert(0, flat % size)
        flat //= size
    return str(place)


def ulps_of(truth: Tensor, dtype: torch.dtype) -> Tensor:
    """Spacing of ``dtype`` at each value of an fp64 tensor.

    eps x 2^floor(log2 |t|), at least the smallest subnormal (IEEE 754-2019, section 3.3).
    """
    limits = torch.finfo(dtype)
    exponent = torch.frexp(truth).exponent.to(torch.float64) - 1
    step = torch.exp2(exponent).mul_(limits.eps).masked_fill_(truth == 0, 0.0)
    return step.clamp_(min=limits.smallest_normal * limits.eps)


@dataclass(slots=True)
class Errors:
    """The error of one output against truth, pooled over draws of the inputs."""

    squared: float = 0.0
    truth_squared: float = 0.0
    ulp_squared: float = 0.0
    elements: int = 0
    rows: list[Tensor] = field(default_factory=list)
    worst_row_ulps: float = 0.0
    worst_row: int = 0

    def add(self, output: Tensor, truth: Tensor, mask: Tensor | None) -> None:
        """Pool one draw; masked places carry no error, both tensors are finite elsewhere."""
        seen = 0
        for got, want, hidden in _row_chunks(output, truth, mask):
            gap = (got.to(torch.float64) - want).masked_fill_(hidden, 0.0)
            want = want.masked_fill(hidden, 0.0)
            spacing = _spacing(want, got.dtype).masked_fill_(hidden, 0.0)
            row = gap.square_().sum(-1)
            row_ulp = spacing.square_().sum(-1)
            self._note_worst(row, row_ulp, seen)
            self.squared += float(row.sum())
            self.truth_squared += float(want.square().sum())
            self.ulp_squared += float(row_ulp.sum())
            self.elements += int((~hidden).sum())
            self.rows.append(row.sqrt_().cpu())
            seen += row.numel()

    def _note_worst(self, row: Tensor, row_ulp: Tensor, seen: int) -> None:
        in_ulps = (row / row_ulp.clamp(min=torch.finfo(torch.float64).tiny)).nan_to_num_(0.0)
        worst = float(in_ulps.max()) ** 0.5
        if worst > self.worst_row_ulps:
            self.worst_row_ulps, self.worst_row = worst, seen + int(in_ulps.argmax())

    @property
    def norm(self) -> float:
        """L2 norm of the error."""
        return math.sqrt(self.squared)

    @property
    def relative(self) -> float:
        """L2 norm of the error over that of the truth; infinite for an error where truth is 0."""
        if self.squared == 0.0:
            return 0.0
        return math.sqrt(self.squared / self.truth_squared) if self.truth_squared else math.inf

    @property
    def ulps(self) -> float:
        """Root mean square error in units of the last place."""
        if self.squared == 0.0:
            return 0.0
        return math.sqrt(self.squared / self.ulp_squared) if self.ulp_squared else math.inf

    @property
    def row_count(self) -> int:
        """Rows pooled so far."""
        return sum(part.numel() for part in self.rows)

    @property
    def row_p99(self) -> float:
        """The 99th percentile of the row errors (nearest rank)."""
        if not self.row_count:
            return 0.0
        rows = torch.cat(self.rows)
        rank = max(1, math.ceil(ROW_SHARE * rows.numel()))
        return float(rows.kthvalue(rank).values)


def _spacing(truth: Tensor, dtype: torch.dtype) -> Tensor:
    """Units in the last place; an integer output has none that is forgiven."""
    return ulps_of(truth, dtype) if dtype.is_floating_point else torch.zeros_like(truth)


def _row_chunks(
    output: Tensor, truth: Tensor, mask: Tensor | None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Matching rows of output, truth and mask, a bounded number of elements at a time."""
    if output.is_complex():
        mask = None if mask is None else mask.unsqueeze(-1).expand(*mask.shape, 2)
        output, truth = torch.view_as_real(output), torch.view_as_real(truth)
    width = output.shape[-1] if output.dim() > 1 else 1
    hidden = torch.zeros_like(truth, dtype=torch.bool) if mask is None else mask
    step = max(1, CHUNK_ELEMENTS // max(1, width))
    rows = (torch.split(one.reshape(-1, width), step) for one in (output, truth, hidden))
    yield from zip(*rows, strict=True)
