"""The parity passes: training curves, gradients against truth, digests; never timed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from experiments.tasks import Outputs
from experiments.workloads.flow.batch import (
    Batch,
    batch_digest,
    digest_tensors,
    flow_loss,
    make_batch,
)
from experiments.workloads.flow.config import SlatConfig
from experiments.workloads.flow.gradients import compared, truth_gradients, truth_model
from experiments.workloads.flow.model import SlatFlow
from experiments.workloads.flow.precision import PRECISIONS
from experiments.workloads.flow.reduced import reduced
from experiments.workloads.flow.sites import Sites
from experiments.workloads.flow.step import Step, adamw, build_model
from levers.errors import UnknownName

CURVE_STEPS = 16
CURVE_LEARNING_RATE = 1e-3
"""Ten times upstream's: the curve has to move in few steps."""

CURVE_DEPTH = 2
CURVE_SAMPLES = 8


@dataclasses.dataclass(frozen=True, slots=True)
class _Pass:
    config: SlatConfig
    sites: Sites
    device: str
    seed: int
    arguments: Mapping[str, Any]

    def model(self, config: SlatConfig) -> SlatFlow:
        """Through the session's sites, so that a lever that is on is on here too."""
        return build_model(config, self.sites, PRECISIONS[config.matmul], self.seed, self.device)


def outputs(
    config: SlatConfig, sites: Sites, device: str, seed: int, arguments: Mapping[str, Any]
) -> Outputs:
    """What is asked for.

    Args:
        config: the timed step's parameters; each pass reduces them as it needs.
        sites: the session's sites.
        device: where to run.
        seed: of weights and batches.
        arguments: ``want``: ``losses`` (with ``steps``, and ``reorder``: the seed of another order
            of the samples in each batch, 0 for none; with ``truth`` the same curve in fp64 on the
            original path), ``gradients`` or ``digests``.

    Raises:
        UnknownName: another ``want``.
    """
    passes: dict[str, Callable[[_Pass], Outputs]] = {
        "losses": _losses,
        "gradients": _gradients,
        "digests": _digests,
    }
    want = str(arguments.get("want"))
    if want not in passes:
        raise UnknownName("output of slat_flow", want, passes)
    return passes[want](_Pass(config, sites, device, seed, arguments))


def curve_config(config: SlatConfig) -> SlatConfig:
    """The timed step with at most two blocks and eight samples: many steps in little time."""
    depth = min(config.depth, CURVE_DEPTH)
    return dataclasses.replace(
        config,
        depth=depth,
        bs=min(config.bs, CURVE_SAMPLES),
        checkpointed=min(config.checkpointed, depth),
        frozen=min(config.frozen, depth - 1),
    )


def _order(samples: int, seed: int) -> list[int] | None:
    """A permutation of the samples; none for seed 0."""
    if not seed:
        return None
    return torch.randperm(samples, generator=torch.Generator().manual_seed(seed)).tolist()


def _losses(run: _Pass) -> Outputs:
    config = curve_config(run.config)
    model = run.model(config)
    first = batch_digest(_curve_batch(run, config, 0))
    dtype = torch.float32
    if run.arguments.get("truth"):
        model, dtype = truth_model(model), torch.float64
    step = Step(model, _curve_batch(run, config, 0, dtype), adamw(model, CURVE_LEARNING_RATE))
    losses = []
    for index in range(int(run.arguments.get("steps", CURVE_STEPS))):
        step.batch = _curve_batch(run, config, index, dtype)
        losses.append(float(step.run()))
    bad = sum(not torch.isfinite(torch.tensor(loss)).item() for loss in losses)
    return Outputs(losses=tuple(losses), nonfinite={"loss": bad}, inputs_digest=first)


def _curve_batch(
    run: _Pass, config: SlatConfig, index: int, dtype: torch.dtype = torch.float32
) -> Batch:
    """A new batch each step, the same in every run of this seed."""
    order = _order(config.bs, int(run.arguments.get("reorder", 0)))
    return make_batch(config, 1000 * run.seed + index, run.device, dtype=dtype, order=order)


def _backward(run: _Pass) -> tuple[SlatConfig, SlatFlow, Batch]:
    config = reduced(run.config)
    model = run.model(config)
    batch = make_batch(config, run.seed, run.device)
    torch.autograd.backward(flow_loss(model, batch))
    return config, model, batch


def _gradients(run: _Pass) -> Outputs:
    config, model, batch = _backward(run)
    found = tuple(compared(model, truth_gradients(model, config, run.seed)))
    return Outputs(gradients=found, nonfinite=_nonfinite(model), inputs_digest=batch_digest(batch))


def _digests(run: _Pass) -> Outputs:
    _, model, batch = _backward(run)
    digests = {f"gradient/{name}": digest_tensors([p.grad]) for name, p in _with_gradient(model)}
    with torch.no_grad():
        digests["loss"] = digest_tensors([flow_loss(model, batch)])
    return Outputs(digests=digests, nonfinite=_nonfinite(model), inputs_digest=batch_digest(batch))


def _with_gradient(model: SlatFlow) -> list[tuple[str, Any]]:
    return [(name, p) for name, p in model.named_parameters() if p.grad is not None]


def _nonfinite(model: SlatFlow) -> dict[str, int]:
    """Non-finite values by gradient, where there are any."""
    counts = {
        f"gradient/{name}": int((~torch.isfinite(p.grad)).sum())
        for name, p in _with_gradient(model)
    }
    return {name: count for name, count in counts.items() if count}
