"""DeepSpeed's ZeRO-1 for one rank: its engine around the same model and the same fused AdamW.

The engine lays all weights into one flat buffer, of which each rank updates an equal part. It
averages gradients after the last backward of a step (its default at this stage; DDP does so while
the backward runs) in buckets of 500 M elements, updates an fp32 copy of its part, and one
all-gather brings the others'. Three of its settings are not the defaults: gradients are not clipped
and their norm is not computed, as in PyTorch's way; its throughput timer is off, which would wait
for the device inside a step; and no bucket is larger than the model.

Weights are fp32 under the caller's autocast. The engine switches an autocast off that it does not
know of; :class:`_Inside` enters the caller's again.

Sources: DeepSpeed 0.19.8 ``runtime/engine.py`` (``forward``, ``backward``,
``set_gradient_accumulation_boundary``), ``runtime/zero/stage_1_and_2.py``,
``runtime/zero/config.py`` (defaults), ``runtime/torch_autocast.py`` (``autocast_if_enabled``);
Rajbhandari et al. 2019, arXiv:1910.02054.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from experiments.ranks.communication import Exchange
from experiments.ranks.deepspeed_package import BUCKET_ELEMENTS, config, environment_kept, load
from experiments.ranks.parallel import RankTeam


class DeepSpeedTeam(RankTeam):
    """The ranks of one arm under DeepSpeed's engine (see :class:`.parallel.RankTeam`).

    After a step no rank holds the averaged gradients of all weights, so that only weights are
    compared between the ranks.
    """

    exchange = Exchange(bucket_bytes=4 * BUCKET_ELEMENTS, gathers=True, gradients_stay=False)

    def __init__(self, rank: int, size: int, device: torch.device, control: Any) -> None:
        super().__init__(rank, size, device, control)
        self._deepspeed = load(device.type)
        self._plain: torch.optim.Optimizer | None = None
        self._engine: Any = None

    def optimizer(self, kind: Any, parameters: Iterable[Tensor], **options: Any) -> Any:
        """The update of that kind; it is the engine that steps it, on this rank's part."""
        self._plain = kind(list(parameters), **options)
        return _Update(self)

    def wrap(self, model: Any) -> Callable[..., Tensor]:
        """The model in an engine, whose weights are noted before they are made the first rank's.

        Raises:
            ValueError: there is no update whose state could be divided.
        """
        if self._plain is None:
            raise ValueError("DeepSpeed's ZeRO-1 needs the optimiser before the model is wrapped")
        self._note("weights at the start", model)
        inside = _Inside(model)
        # The rank sees one device alone, the first.
        with environment_kept(LOCAL_RANK="0"):
            self._engine, *_ = self._deepspeed.initialize(
                model=inside,
                optimizer=self._plain,
                config=config(sum(p.numel() for p in model.parameters() if p.requires_grad)),
                dist_init_required=False,
            )
        self._engine.set_gradient_accumulation_boundary(True)

        def forward(*inputs: Any) -> Tensor:
            inside.context = callers_autocast(self.device.type)
            out: Tensor = self._engine(*inputs)
            return out

        return forward

    def backward(self, loss: Any) -> None:
        """The engine averages the gradients where no more micro-steps follow."""
        self._engine.backward(loss, scale_wrt_gas=False)

    @contextlib.contextmanager
    def local(self, forward: Callable[..., Any]) -> Iterator[None]:
        """The engine without its exchange."""
        del forward
        last = self._engine.is_gradient_accumulation_boundary()
        self._engine.set_gradient_accumulation_boundary(False)
        try:
            yield
        finally:
            self._engine.set_gradient_accumulation_boundary(last)

    def update(self) -> None:
        """Update this rank's part of the weights and collect the others'."""
        self._engine.step()


class _Update:
    """What a step calls for its optimiser: the engine is there only once the model is wrapped."""

    def __init__(self, team: DeepSpeedTeam) -> None:
        self._team = team

    def step(self) -> None:
        """One update."""
        self._team.update()


class _Inside(nn.Module):
    """The model as the engine holds it, under an autocast of its own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.context: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()

    def forward(self, *inputs: Any) -> Any:
        """The model's own result."""
        with self.context:
            return self.model(*inputs)


def callers_autocast(device_type: str) -> contextlib.AbstractContextManager[Any]:
    """The autocast that is on now, to be entered again further in."""
    if not torch.is_autocast_enabled(device_type):
        return contextlib.nullcontext()
    return torch.autocast(
        device_type,
        dtype=torch.get_autocast_dtype(device_type),
        cache_enabled=torch.is_autocast_cache_enabled(),
    )
