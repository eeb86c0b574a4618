"""Every parameter's gradient against fp64 truth of the same model, at reduced depth and length."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from experiments.tasks import Gradient
from experiments.workloads.flow.batch import flow_loss, make_batch
from experiments.workloads.flow.config import FlowConfig
from experiments.workloads.flow.inputs import digest_tensors
from experiments.workloads.flow.model import FlowModel
from experiments.workloads.flow.precision import TRUTH
from experiments.workloads.flow.sites import Sites
from experiments.workloads.flow.step import build_model

ROW_QUANTILE = 0.99


def truth_model(model: FlowModel) -> FlowModel:
    """The same weights in fp64, on the original path of every site, without autocast."""
    config = model.config
    device = next(model.parameters()).device
    twin = build_model(config, Sites(TRUTH, "sdpa"), TRUTH, 0, device).double()
    twin.load_state_dict(model.state_dict())
    return twin


def truth_gradients(model: FlowModel, config: FlowConfig, seed: int) -> dict[str, Tensor]:
    """fp64 gradients by parameter name."""
    twin = truth_model(model)
    device = next(model.parameters()).device
    batch = make_batch(config, seed, device, dtype=torch.float64, conditioned=True)
    torch.autograd.backward(flow_loss(twin, batch))
    return {name: p.grad for name, p in twin.named_parameters() if p.grad is not None}


def compared(model: FlowModel, truth: dict[str, Tensor]) -> Iterator[Gradient]:
    """One record for each parameter.

    Raises:
        ValueError: a parameter has a gradient on one side only.
    """
    for name, parameter in model.named_parameters():
        if parameter.grad is None or name not in truth:
            raise ValueError(f"{name} has a gradient on one side only")
        yield compare(name, parameter.grad, truth[name])


def compare(name: str, found: Tensor, truth: Tensor) -> Gradient:
    """Errors of one gradient.

    ``relative_error`` is ``|found - truth| / |truth|`` (L2). A row's error is its L2 error over the
    root mean square of the *true rows'* norms, so that a row that is nearly zero by chance does not
    decide; a vector's rows are its elements.
    """
    wide = found.double()
    rows = (wide - truth).reshape(truth.shape[0], -1)
    row_norm = truth.norm() / truth.shape[0] ** 0.5
    row_errors = rows.norm(dim=1) / row_norm
    return Gradient(
        parameter=name,
        relative_error=float((wide - truth).norm() / truth.norm()),
        row_error_p99=float(torch.quantile(row_errors, ROW_QUANTILE)),
        norm=float(wide.norm()),
        digest=digest_tensors([found]),
    )
