"""Digests of what a step works on, part by part: as drawn, and as it lies on the device."""

from __future__ import annotations

import hashlib
import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from experiments.values import INPUTS_OVERWRITTEN, named_digests, parts_of
from experiments.workloads.flow.batch import Batch, Sample


def digest_tensors(tensors: Iterable[Tensor]) -> str:
    """SHA-256 (16 hex digits) of dtypes, shapes and bytes."""
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        raw = tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8)
        sha.update(raw.numpy().tobytes())
    return sha.hexdigest()[:16]


def batch_digest(*batches: Batch) -> str:
    """Digests of all that a step reads, in the order in which its samples were drawn.

    However they are split into batches, and in whatever order they are packed, samples that are the
    same give the same digest.
    """
    parts = sorted(
        itertools.chain.from_iterable(map(_by_sample, batches)), key=operator.itemgetter(0)
    )
    return _digest({name: [one[name] for _, one in parts] for name in parts[0][1]})


def _by_sample(batch: Batch) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Of each sample its position as drawn, and what a step reads of it."""
    lengths, cond_lengths = batch.layout.cu_seqlens.diff(), batch.cond_layout.cu_seqlens.diff()
    phases = torch.view_as_real(batch.phases_NP)
    rows, cond_rows = map(itertools.pairwise, (batch.layout.offsets, batch.cond_layout.offsets))
    for index, (position, (first, end), (cond_first, cond_end)) in enumerate(
        zip(batch.drawn, rows, cond_rows, strict=True)
    ):
        one = slice(index, index + 1)
        yield (
            position,
            {
                "clean": batch.clean_NL[first:end],
                "noise": batch.noise_NL[first:end],
                "time": batch.t_B[one],
                "cond": batch.cond[cond_first:cond_end],
                "lengths": lengths[one],
                "cond_lengths": cond_lengths[one],
                "phases": phases[first:end],
            },
        )


def drawn_digest(samples: Sequence[Sample]) -> str:
    """What :func:`batch_digest` gives of these samples in fp32, from their tensors on the CPU.

    The rotary phases are not among them: the device computes them from the coordinates.
    """
    return _digest(
        {
            "clean": [one.clean for one in samples],
            "noise": [one.noise for one in samples],
            "time": [one.t[None] for one in samples],
            "cond": [one.cond for one in samples],
            "lengths": [torch.tensor([len(one.coords) for one in samples], dtype=torch.int32)],
            "cond_lengths": [torch.tensor([len(one.cond) for one in samples], dtype=torch.int32)],
        }
    )


def overwritten(samples: Sequence[Sample], digest: str) -> Mapping[str, str]:
    """A fact where fp32 batches are not as drawn: an arm wrote into them, or a copy failed.

    Args:
        samples: as drawn.
        digest: of the batches after the work (:func:`batch_digest`).
    """
    drawn, now = parts_of(drawn_digest(samples)), parts_of(digest)
    apart = [name for name, digest in drawn.items() if now[name] != digest]
    return {INPUTS_OVERWRITTEN: ", ".join(apart)} if apart else {}


def _digest(parts: Mapping[str, Sequence[Tensor]]) -> str:
    return named_digests(
        {
            name: digest_tensors([torch.cat([one.detach().cpu() for one in tensors])])
            for name, tensors in parts.items()
        }
    )
