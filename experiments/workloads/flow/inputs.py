"""Digests of what a step works on, part by part: as drawn, and as it lies on the device."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

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
    """Digests of all that a step reads, however its samples are split into batches."""
    return _digest(
        {
            "clean": [one.clean_NL for one in batches],
            "noise": [one.noise_NL for one in batches],
            "time": [one.t_B for one in batches],
            "cond": [one.cond for one in batches],
            "lengths": [one.layout.cu_seqlens.diff() for one in batches],
            "cond_lengths": [one.cond_layout.cu_seqlens.diff() for one in batches],
            "phases": [torch.view_as_real(one.phases_NP) for one in batches],
        }
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
