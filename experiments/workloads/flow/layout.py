"""The packed layout: where each sample's rows lie. Built once for a batch, on the host.

It carries ``cu_seqlens``, though the original path rebuilds them on the CPU and copies them to the
device at every attention call (60 times a forward), as upstream does: keeping them is a lever.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """B samples of packed rows.

    Attributes:
        lengths: rows of each sample.
        offsets: B + 1 row offsets on the host.
        cu_seqlens: the same on the device, int32.
        batch_map: the sample of each row, int64 [N].
        longest: rows of the longest sample.
        dense: whether the batch is ``[B, N / B, C]`` in all but name: equal lengths, as the
            workload's kind and not by chance.
    """

    lengths: tuple[int, ...]
    offsets: tuple[int, ...]
    cu_seqlens: Tensor
    batch_map: Tensor
    longest: int
    dense: bool = False

    @classmethod
    def of(
        cls, lengths: Sequence[int], device: torch.device | str, *, dense: bool = False
    ) -> PackedLayout:
        """Lay out samples of these lengths one after the other.

        Raises:
            ValueError: the lengths of a dense batch differ.
        """
        if dense and len(set(lengths)) > 1:
            raise ValueError(f"a dense batch has samples of one length, not of {set(lengths)}")
        offsets = (0, *itertools.accumulate(lengths))
        samples = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
        return cls(
            lengths=tuple(lengths),
            offsets=offsets,
            cu_seqlens=torch.tensor(offsets, dtype=torch.int32).to(device),
            batch_map=samples.to(device),
            longest=max(lengths),
            dense=dense,
        )

    @property
    def tokens(self) -> int:
        """N, the rows of all samples."""
        return self.offsets[-1]
