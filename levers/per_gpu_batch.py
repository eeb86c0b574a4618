"""How many samples go through the model at once: the same global batch in other micro-batches.

What changes: the samples of a training step (``bs x accumulate`` of them, in their order) are split
into micro-batches of the setting's size, whose gradients add up. The objective stays the same: each
micro-batch's loss counts by its share of the step's tokens.

Mechanism: larger micro-batches amortise launches and the update's fixed work over more samples,
fill the device with longer matrix products, and pass over the weights (casts, gradients) fewer
times; they also keep more activations: about 11 GB more for each sample of the 1.3 B models. So
the setting is a trade of memory for time, and its memory is guarded absolutely: the peak may not
exceed 0.75 of the device, the target of the elastic memory controller it is published with.

Where it does not help: a device that one sample already fills (throughput is flat from there),
steps without accumulation (one micro-batch is the global batch), a CPU beyond its caches.

Sources: the published switch ``PER_GPU_BS=8`` with accumulation 4, and its memory per GPU (2
samples 38 GB, 8 samples 105 GB, 12 out of memory on an H200).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from levers.base import OFF, Facts, OpCase, Settings, Site
from levers.policy import GatingPolicy, Guard, ParityClass

SITE = "flow.micro_batches"
SIZES = ("2", "4", "8", "12")

MEMORY_CEILING = 0.75
"""Share of the device's memory that the peak may reach (the elastic controller's target)."""

CPU_MARGIN = 0.03
"""Log ratio; one shared core moves a step by up to 3 % between processes."""


class PerGpuBatch:
    """Swaps the callable that splits a step's samples."""

    name = "per_gpu_batch"
    summary = "micro-batches of another size for the same global batch, memory guarded absolutely"
    settings = Settings((OFF, *SIZES))
    env = "LEVER_PER_GPU_BATCH"
    touches = (SITE,)
    supersedes: tuple[str, ...] = ()
    composes_with: tuple[str, ...] = ()
    workloads = ("slat_flow", "ss_flow")
    at_import = False

    def policy(self, facts: Facts) -> GatingPolicy:
        """Throughput must win; peak memory has an absolute ceiling, since it grows by design."""
        on_cpu = facts.device_type == "cpu"
        ceiling = Guard("memory/peak_bytes", ceiling=MEMORY_CEILING)
        return GatingPolicy(
            primaries=("train/tok_s",),
            guards=() if on_cpu else (ceiling,),
            claims=ParityClass.LOSSLESS,
            primary_margin=CPU_MARGIN if on_cpu else 0.01,
        )

    def unmet(self, facts: Facts, setting: str) -> tuple[str, ...]:
        """It needs the site, and a global batch that the setting splits evenly and differently."""
        if setting == OFF:
            return ()
        reasons = []
        if SITE not in facts.sites:
            reasons.append(f"{facts.workload} has no site {SITE}")
        bs, accumulate = (int(facts.parameters.get(name, 0)) for name in ("bs", "accumulate"))
        samples, size = bs * accumulate, int(setting)
        if samples and samples % size:
            reasons.append(
                f"{samples} samples a step (bs={bs} x accumulate={accumulate}) "
                f"are no multiple of {size}"
            )
        if size == bs:
            reasons.append(f"the reference's micro-batch has {bs} samples already")
        return tuple(reasons)

    def environment(self, setting: str) -> Mapping[str, str]:
        """No variable beside the kill switch."""
        del setting
        return {}

    def enable(self, site: Site, setting: str) -> object:
        """Put our split in the site; returns the callable that was there."""
        if setting == OFF:
            return site.launch
        found, site.launch = site.launch, _Split(int(setting), site.launch)
        return found

    def disable(self, site: Site, undo: object) -> None:
        """Put back the callable that ``enable`` found."""
        site.launch = undo  # type: ignore[assignment]

    def witness(self, site: Site) -> Mapping[str, str]:
        """Per axis, how many micro-batches of which size a step ran."""
        return {
            axis: ", ".join(f"{plan} x {count}" for plan, count in sorted(plans.items()))
            for axis, plans in site.observations.items()
        }

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        """A Linear's weight gradient over the micro-batches of both splits."""
        from levers.kernels.micro_batch_cases import op_cases

        return op_cases(int(setting), device)


class _Split:
    """Splits a step's samples into groups of one size, each ordered by what was there before."""

    def __init__(self, size: int, found: Callable[..., Sequence[Sequence[Any]]]) -> None:
        self.size, self.found = size, found

    def __call__(self, samples: Sequence[Any], size: int) -> list[Sequence[Any]]:
        """Groups of our size, whatever the reference's is; the last one may be smaller."""
        del size
        groups = [samples[at : at + self.size] for at in range(0, len(samples), self.size)]
        return [ordered for group in groups for ordered in self.found(group, len(group))]


LEVER = PerGpuBatch()
