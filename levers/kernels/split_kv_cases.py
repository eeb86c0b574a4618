"""The cases of the op check of split-KV decode: lengths, GQA ratios and adversarial values.

A case's inputs are ``q_BHD``, the pages ``k_PKSD v_PKSD``, ``table_BM`` and ``lengths_B``. Pages
lie in random order, and every slot that no sequence uses holds NaN: a kernel that reads it is
found out. A page as long as the capacity makes the cache contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from levers.base import OpCase
from levers.kernels.split_heuristic import DecodeShape, upstream_splits
from levers.kernels.split_kv import (
    Backend,
    PagedKV,
    Workspace,
    decode_attention,
    plan_splits,
    truth,
)
from levers.kernels.split_kv_rules import chosen_splits

Tensors = tuple[Tensor, ...]
Fill = Callable[[Tensor, Tensor, Tensor], None]
"""Changes ``q_BHD k_BTKD v_BTKD`` (fp32, standard normal) in place into the case's values."""

KV_HEADS = 8
KV_BLOCK = 128
PAGE = 128
LOADS = (1, 2, 4, 8, 16, 32)
"""Batches at which the reference's rule is asked for its other orders of summation."""
CPU_SM_COUNT = 48
"""SMs that the split rule is told of on a CPU: those of the device of the published report."""


def plain(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Standard normal values."""


def large_means(q: Tensor, k: Tensor, v: Tensor) -> None:  # noqa: ARG001 - the shape of a Fill
    """Keys and values far from zero, against their scatter of one."""
    k.add_(8.0)
    v.add_(100.0)


def cancelling(q: Tensor, k: Tensor, v: Tensor) -> None:  # noqa: ARG001 - the shape of a Fill
    """Equal weights over values that cancel down to a small signal."""
    k.zero_()
    v[:, ::2] += 100.0
    v[:, 1::2] -= 100.0


def peaked(q: Tensor, k: Tensor, v: Tensor) -> None:  # noqa: ARG001 - the shape of a Fill
    """Scores so far apart that one token has nearly all the weight."""
    q.mul_(16.0)


def _subnormal(q: Tensor, k: Tensor, v: Tensor) -> None:  # noqa: ARG001 - the shape of a Fill
    """Values below the smallest normal number of fp32 and bf16 (1.2e-38)."""
    v.mul_(1e-39)


def _masked_block(q: Tensor, k: Tensor, v: Tensor) -> None:  # noqa: ARG001 - the shape of a Fill
    """The whole first KV block scores minus infinity, so that a split can be empty of weight."""
    q[..., 0] = q[..., 0].abs() + 0.1
    k[:, : min(KV_BLOCK, k.shape[1] - 1), :, 0] = -math.inf


def _nan_value(q: Tensor, k: Tensor, v: Tensor) -> None:  # noqa: ARG001 - the shape of a Fill
    """A NaN in one value and an infinity in another."""
    v[0, 0, 0, 3], v[0, 1, 1, 5] = math.nan, math.inf


def _nan_key(q: Tensor, k: Tensor, v: Tensor) -> None:  # noqa: ARG001 - the shape of a Fill
    """A NaN in one key: every output of its KV head is NaN."""
    k[0, 0, 2, 1] = math.nan


@dataclass(frozen=True)
class SplitCase:
    """One case; its methods are the callables of an :class:`levers.base.OpCase`."""

    lengths: tuple[int, ...]
    group: int
    head_dim: int
    capacity: int
    dtype: torch.dtype
    device: str
    sm_count: int
    fill: Fill = plain
    page: int = PAGE
    unused: float = math.nan

    @property
    def shape(self) -> DecodeShape:
        """What the split rule sees."""
        return DecodeShape(
            len(self.lengths),
            KV_HEADS,
            self.capacity,
            KV_BLOCK,
            self.sm_count,
            query_heads=KV_HEADS * self.group,
        )

    def inputs(self, seed: int) -> Tensors:
        """All inputs, drawn on the CPU so that every device gets the same."""
        draw = torch.Generator().manual_seed(seed)
        batch, longest = len(self.lengths), max(self.lengths)
        q = torch.randn(batch, KV_HEADS * self.group, self.head_dim, generator=draw)
        k, v = (torch.randn(batch, longest, KV_HEADS, self.head_dim, generator=draw) for _ in "kv")
        self.fill(q, k, v)
        per_slot = -(-self.capacity // self.page)
        order = torch.randperm(batch * per_slot + 1, generator=draw)[:-1]
        table = order.view(batch, per_slot).to(torch.int32)
        pages = [self._paged(x, table) for x in (k, v)]
        lengths = torch.tensor(self.lengths, dtype=torch.int32)
        move = partial(torch.Tensor.to, device=self.device)
        return (
            move(q.to(self.dtype)),
            *(move(page.to(self.dtype)) for page in pages),
            move(table),
            move(lengths),
        )

    def _paged(self, x_BTKD: Tensor, table_BM: Tensor) -> Tensor:
        """Scatter tokens to pages; slots that are not used keep ``unused``."""
        shape = (table_BM.numel() + 1, KV_HEADS, self.page, self.head_dim)
        pages = torch.full(shape, self.unused)
        for row, length in enumerate(self.lengths):
            for first in range(0, length, self.page):
                part = x_BTKD[row, first : min(first + self.page, length)]
                pages[table_BM[row, first // self.page], :, : len(part)] = part.transpose(0, 1)
        return pages

    def outputs(self, inputs: Tensors) -> Tensors:
        """Room for ``o_BHD``."""
        return (torch.empty_like(inputs[0]),)

    def attend(self, splits: int, inputs: Tensors, outputs: Tensors) -> None:
        """The attention with a given number of splits."""
        backend: Backend = "triton" if inputs[0].device.type == "cuda" else "torch"
        self.attend_by(partial(decode_attention, backend=backend), splits, inputs, outputs)

    def attend_by(
        self, launch: Callable[..., int], splits: int, inputs: Tensors, outputs: Tensors
    ) -> None:
        """The attention by ``launch(q, kv, plan, out, workspace)``."""
        q_BHD, kv = inputs[0], PagedKV(*inputs[1:])
        batch, heads, dim = q_BHD.shape
        workspace = Workspace(max(1, splits), batch, heads, dim, q_BHD.device)
        launch(q_BHD, kv, plan_splits(self.capacity, KV_BLOCK, splits), outputs[0], workspace)

    def reorderings(self, found: int) -> tuple[Callable[[Tensors, Tensors], None], ...]:
        """The split counts that the reference's rule picks at other loads than the case's."""
        counts = {upstream_splits(replace(self.shape, batch=batch)) for batch in LOADS}
        return tuple(partial(self.attend, splits) for splits in sorted(counts - {found}))

    def truth(self, inputs: Tensors) -> Tensors:
        """The attention in fp64."""
        return (truth(inputs[0], PagedKV(*inputs[1:])),)

    def nonfinite(self, inputs: Tensors) -> Tensors:
        """Where the true output is not finite."""
        return (~torch.isfinite(self.truth(inputs)[0]),)


def _case(name: str, setting: str, case: SplitCase, *, masked: bool = False) -> OpCase:
    """One case of the split rule's own count against the capped one.

    The reference's other orders are the split counts that its own rule picks at other loads.
    """
    found = upstream_splits(case.shape)
    on_cuda = torch.device(case.device).type == "cuda"
    device = torch.cuda.get_device_name(case.device) if on_cuda else "cpu"
    capped = chosen_splits(case.shape, setting, found, device)
    return OpCase(
        name=name,
        inputs=case.inputs,
        outputs=case.outputs,
        reference=partial(case.attend, found),
        candidate=partial(case.attend, capped),
        truth=case.truth,
        masks=case.nonfinite if masked else None,
        elements=len(case.lengths) * KV_HEADS * case.group * case.head_dim,
        reorderings=case.reorderings(found),
    )


def op_cases(setting: str, device: str) -> Sequence[OpCase]:
    """All cases of one setting of the cap on a device.

    The capacity is 7 KV blocks on the CPU and 16 on CUDA.
    """
    on_cuda = torch.device(device).type == "cuda"
    sms = torch.cuda.get_device_properties(device).multi_processor_count if on_cuda else 0
    capacity, dim = (2048, 128) if on_cuda else (896, 32)
    make = partial(
        SplitCase, head_dim=dim, capacity=capacity, device=device, sm_count=sms or CPU_SM_COUNT
    )
    main = torch.bfloat16 if on_cuda else torch.float32
    other = torch.float32 if on_cuda else torch.bfloat16
    return (
        *_length_cases(setting, make, capacity, main, other),
        *_value_cases(setting, make, capacity, main, other),
    )


def _length_cases(
    setting: str,
    make: Callable[..., SplitCase],
    capacity: int,
    main: torch.dtype,
    other: torch.dtype,
) -> list[OpCase]:
    """One token, block edges, ragged and cap-long lengths, over the GQA ratios and dtypes."""
    lengths = {
        "one token": (1,),
        "block edges": (127, 128, 129, 256),
        "ragged": (capacity, 1, 130, capacity - 129),
        "cap-long c1": (capacity,),
        "cap-long c2": (capacity,) * 2,
        "long c4": (capacity - 7,) * 4,
        "long c8": tuple(capacity - 11 * i for i in range(8)),
    }
    cases = []
    for label, found in lengths.items():
        for group in (2, 4):
            case = make(lengths=found, group=group, dtype=main)
            cases.append(_case(f"{label}, {group} q heads a kv head, {_word(main)}", setting, case))
    for label, group in (("ragged", 1), ("ragged", 2), ("ragged", 4), ("cap-long c1", 2)):
        case = make(lengths=lengths[label], group=group, dtype=other)
        cases.append(_case(f"{label}, {group} q heads a kv head, {_word(other)}", setting, case))
    wide = make(lengths=lengths["ragged"], group=2, dtype=main, head_dim=64)
    return [*cases, _case(f"ragged, head dim 64, {_word(main)}", setting, wide)]


def _value_cases(
    setting: str,
    make: Callable[..., SplitCase],
    capacity: int,
    main: torch.dtype,
    other: torch.dtype,
) -> list[OpCase]:
    """Adversarial values on two sequences of different lengths."""
    lengths = (capacity, capacity - 200)
    fills: dict[str, tuple[Fill, torch.dtype, bool]] = {
        "large means": (large_means, main, False),
        "large means, other dtype": (large_means, other, False),
        "cancelling": (cancelling, main, False),
        "peaked": (peaked, main, False),
        "subnormal": (_subnormal, torch.float32, False),
        "masked block": (_masked_block, main, False),
        "masked block, other dtype": (_masked_block, other, False),
        "NaN and Inf in values": (_nan_value, main, True),
        "NaN in a key": (_nan_key, main, True),
    }
    cases = []
    for label, (fill, dtype, masked) in fills.items():
        case = make(lengths=lengths, group=2, dtype=dtype, fill=fill)
        cases.append(_case(f"{label}, {_word(dtype)}", setting, case, masked=masked))
    return cases


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
