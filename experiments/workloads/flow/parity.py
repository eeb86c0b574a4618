"""The parity passes: training curves, gradients against truth, digests; never timed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from experiments.tasks import Outputs
from experiments.values import merged_digests
from experiments.workloads.flow.batch import Sample, draw_samples
from experiments.workloads.flow.config import FlowConfig
from experiments.workloads.flow.gradients import compared, truth_gradients, truth_model
from experiments.workloads.flow.inputs import batch_digest, digest_tensors
from experiments.workloads.flow.model import FlowModel
from experiments.workloads.flow.precision import PRECISIONS
from experiments.workloads.flow.reduced import reduced
from experiments.workloads.flow.sites import Sites
from experiments.workloads.flow.step import Step, adamw, build_model
from levers.errors import UnknownName

CURVE_LEARNING_RATE = 1e-3
"""Ten times upstream's: the curve has to move in few steps."""

CURVE_SAMPLES = 8


@dataclasses.dataclass(frozen=True, slots=True)
class _Pass:
    config: FlowConfig
    sites: Sites
    device: str
    seed: int
    arguments: Mapping[str, Any]

    def model(self, config: FlowConfig) -> FlowModel:
        """Through the session's sites, so that a lever that is on is on here too."""
        return build_model(config, self.sites, PRECISIONS[config.matmul], self.seed, self.device)


def outputs(
    config: FlowConfig, sites: Sites, device: str, seed: int, arguments: Mapping[str, Any]
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
        raise UnknownName("output of the flow step", want, passes)
    return passes[want](_Pass(config, sites, device, seed, arguments))


def curve_config(config: FlowConfig) -> FlowConfig:
    """The timed step with at most ``curve_depth`` blocks and eight samples a micro-batch."""
    depth = min(config.depth, config.curve_depth)
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
    if run.arguments.get("truth"):
        model = truth_model(model)
    step = Step(model, _curve_samples(run, config, 0), adamw(model, CURVE_LEARNING_RATE))
    losses, inputs = [], []
    for index in range(int(run.arguments.get("steps", config.curve_steps))):
        step.load(_curve_samples(run, config, index))
        losses.append(float(step.run()))
        inputs.append(batch_digest(*step.ran))
    bad = sum(not torch.isfinite(torch.tensor(loss)).item() for loss in losses)
    return Outputs(
        losses=tuple(losses),
        nonfinite={"loss": bad},
        inputs_digest=merged_digests(inputs),
        step_inputs=tuple(inputs),
    )


def _curve_samples(run: _Pass, config: FlowConfig, index: int) -> tuple[Sample, ...]:
    """New samples each step, the same in every run of this seed."""
    order = _order(config.samples, int(run.arguments.get("reorder", 0)))
    return draw_samples(config, 1000 * run.seed + index, order=order)


def _backward(run: _Pass) -> tuple[Step, Tensor]:
    """A reduced step that has run, with its gradients in place, and its loss."""
    config = reduced(run.config)
    step = Step(run.model(config), draw_samples(config, run.seed, conditioned=True))
    return step, step.run()


def _gradients(run: _Pass) -> Outputs:
    step, _ = _backward(run)
    truth = truth_gradients(step.model, step.model.config, run.seed)
    return Outputs(
        gradients=tuple(compared(step.model, truth)),
        nonfinite=_nonfinite(step.model),
        inputs_digest=batch_digest(*step.ran),
    )


def _digests(run: _Pass) -> Outputs:
    step, loss = _backward(run)
    found = {name: digest_tensors([p.grad]) for name, p in _with_gradient(step.model)}
    digests = {f"gradient/{name}": digest for name, digest in found.items()}
    return Outputs(
        digests={**digests, "loss": digest_tensors([loss])},
        nonfinite=_nonfinite(step.model),
        inputs_digest=batch_digest(*step.ran),
    )


def _with_gradient(model: FlowModel) -> list[tuple[str, Any]]:
    return [(name, p) for name, p in model.named_parameters() if p.grad is not None]


def _nonfinite(model: FlowModel) -> dict[str, int]:
    """Non-finite values by gradient, where there are any."""
    counts = {
        f"gradient/{name}": int((~torch.isfinite(p.grad)).sum())
        for name, p in _with_gradient(model)
    }
    return {name: count for name, count in counts.items() if count}
