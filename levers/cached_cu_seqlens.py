"""Row offsets of the packed samples kept on the device instead of rebuilt at every call.

What changes: variable-length attention wants the offsets of the samples as an int32 tensor. The
original builds it from a Python list on the host and copies it to the device, for queries and for
keys of each attention: 120 times in a forward of 30 blocks. ``on`` hands out the tensor that the
layout has carried since the batch was made.

Mechanism: a copy from pageable memory waits on the host until the device has taken it, because the
source may be freed at once: the host loses the head start that it had on the device, and where
kernels are short the device waits for it.

Where it does not help: attention that takes no offsets (per sample, or dense on equal lengths), a
step whose device time hides the host entirely, and replayed CUDA graphs.

Sources: CUDA Runtime API, "API synchronization behavior" (pageable host memory to device memory);
TRELLIS ``modules/sparse/attention`` (offsets rebuilt in each call).
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from levers.base import OFF, Facts, OpCase, Settings, Site
from levers.policy import GatingPolicy, Guard, ParityClass

if TYPE_CHECKING:
    from torch import Tensor

ON = "on"
SITE = "flow.cu_seqlens"

PEAK_MEMORY_MARGIN = 0.01
"""Log ratio; allocated bytes repeat to the byte on CUDA. A CPU's resident set guards nothing."""

LENGTHS: dict[str, tuple[int, ...]] = {
    "one sample": (2222,),
    "ragged": (601, 1, 257, 3673, 17),
    "an empty sample": (5, 0, 3),
    "many": tuple(range(1, 257)),
}

kept: Callable[[Any], Any] = operator.attrgetter("cu_seqlens")
"""The tensor that the layout carries."""


class CachedCuSeqlens:
    """Swaps the callable that makes the offsets for the one that hands out the layout's."""

    name = "cached_cu_seqlens"
    summary = "row offsets kept on the device instead of copied at every attention"
    settings = Settings((OFF, ON))
    env = "LEVER_CACHED_CU_SEQLENS"
    touches = (SITE,)
    supersedes: tuple[str, ...] = ()
    composes_with: tuple[str, ...] = ()
    workloads = ("slat_flow",)
    at_import = False

    def policy(self, facts: Facts) -> GatingPolicy:
        """The same integers: byte-exact, so that it only may not slow anything.

        Flash attention sums the gradient of the queries by atomics: where the reference's own bits
        vary, the step as a whole can show no more than lossless, which may ship.
        """
        on_cpu = facts.device_type == "cpu"
        return GatingPolicy(
            primaries=("train/tok_s",),
            guards=() if on_cpu else (Guard("memory/peak_bytes", PEAK_MEMORY_MARGIN),),
            claims=ParityClass.BYTE_EXACT,
            demands=ParityClass.LOSSLESS,
        )

    def unmet(self, facts: Facts, setting: str) -> tuple[str, ...]:
        """It needs the site, and an attention that reads offsets."""
        reasons = []
        if setting != OFF and SITE not in facts.sites:
            reasons.append(f"{facts.workload} has no site {SITE}")
        if setting != OFF and facts.parameters.get("attn") == "sdpa":
            reasons.append("attn=sdpa runs sample by sample and reads no offsets")
        return tuple(reasons)

    def environment(self, setting: str) -> Mapping[str, str]:
        """No variable beside the kill switch."""
        del setting
        return {}

    def enable(self, site: Site, setting: str) -> object:
        """Hand out what the layout carries; returns the callable that was there."""
        found = site.launch
        if setting != OFF:
            site.launch = kept
        return found

    def disable(self, site: Site, undo: object) -> None:
        """Put back the callable that ``enable`` found."""
        site.launch = undo  # type: ignore[assignment]

    def witness(self, site: Site) -> Mapping[str, str]:
        """Per axis, how often offsets were rebuilt and how often the kept ones were handed out."""
        return {
            axis: ", ".join(f"{plan} x {count}" for plan, count in sorted(plans.items()))
            for axis, plans in site.observations.items()
        }

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        """The offsets of several layouts, made and kept."""
        del setting
        return tuple(_case(name, OffsetsCase(n, device)) for name, n in LENGTHS.items())


@dataclass(frozen=True, slots=True)
class Carried:
    """A layout: lengths on the host, offsets on the device."""

    lengths: tuple[int, ...]
    cu_seqlens: Tensor


@dataclass(frozen=True, slots=True)
class OffsetsCase:
    """One layout; its methods are the callables of an :class:`levers.base.OpCase`."""

    lengths: tuple[int, ...]
    device: str

    def inputs(self, seed: int) -> tuple[Tensor, ...]:
        """The lengths, int64 [B]; there is nothing to draw."""
        del seed
        import torch

        return (torch.tensor(self.lengths, device=self.device),)

    def outputs(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Room for B + 1 offsets."""
        (lengths,) = inputs
        return (lengths.new_empty(len(lengths) + 1).int(),)

    def rebuilt(self, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
        """As the original: from a list, then copied to the device."""
        import torch

        offsets = [0, *itertools.accumulate(inputs[0].tolist())]
        outputs[0].copy_(torch.tensor(offsets, dtype=torch.int32).to(self.device))

    def carried(self, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
        """What the lever hands out of a layout that was built on the device."""
        import torch

        sums = inputs[0].cumsum(0, dtype=torch.int32)
        layout = Carried(self.lengths, torch.nn.functional.pad(sums, (1, 0)))
        outputs[0].copy_(kept(layout))

    def truth(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The sums of the lengths in fp64."""
        import torch

        return (torch.nn.functional.pad(inputs[0].double().cumsum(0), (1, 0)),)


def _case(name: str, case: OffsetsCase) -> OpCase:
    return OpCase(
        name=name,
        inputs=case.inputs,
        outputs=case.outputs,
        reference=partial(OffsetsCase.rebuilt, case),
        candidate=partial(OffsetsCase.carried, case),
        truth=case.truth,
        elements=len(case.lengths) + 1,
    )


LEVER = CachedCuSeqlens()
