"""Parameters of the flow workloads and what follows from them, without torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiments.spec import ZERO
from experiments.values import Scalar, digest_of
from experiments.workloads.flow.flop import StepFlop, step_flop
from experiments.workloads.flow.lengths import DENSE, step_lengths

AUTO = "auto"
TORCH = "torch"


@dataclass(frozen=True, slots=True)
class FlowConfig:
    """Every parameter of a flow workload, resolved.

    Attributes:
        size: name of the set of defaults.
        channels, heads, depth, mlp: width C, heads (head dim C / heads), blocks, MLP hidden width.
        cond_channels, cond_tokens: width and number of condition tokens of each sample.
        latent: input and output channels of a token.
        bs: samples of a micro-batch.
        profile, tokens, cap, lengths_seed: how long the samples are (:mod:`.lengths`); ``dense``
            fills the grid.
        checkpointed: leading blocks that are recomputed in the backward. Pinned: upstream's elastic
            controller moves it during a run, which would change the work between the arms.
        frozen: leading blocks (and the shared modulation) that are not trained.
        optimizer: ``adamw`` adds the fused update to the step.
        zero: who divides its state among several ranks (ZeRO-1): ``torch`` or ``deepspeed``.
        attn: ``varlen`` (torch's variable-length flash attention) or ``sdpa`` (one call for a dense
            batch, one for each sample of a packed one).
        matmul: dtype of the matrix products. ``bf16`` is the published autocast; ``fp32`` keeps the
            residual stream, the modulation and all their gradients in bf16, and only multiplies in
            fp32, for CPUs that multiply bf16 forty times slower than fp32.
        steps: timed steps in a sample.
        warmup: untimed steps before them.
        threads: CPU threads of the measured process.
        grid: voxels along an axis of the latent grid.
        accumulate: micro-batches of a step; their gradients add up, and the step's batch has
            ``bs x accumulate`` samples.
        curve_steps, curve_depth: steps, and at most so many blocks, of the loss check.
    """

    size: str
    channels: int
    heads: int
    depth: int
    mlp: int
    cond_channels: int
    cond_tokens: int
    latent: int
    bs: int
    profile: str
    tokens: int
    cap: int
    lengths_seed: int
    checkpointed: int
    frozen: int
    optimizer: str
    attn: str
    matmul: str
    steps: int
    warmup: int
    threads: int
    grid: int = 32
    accumulate: int = 1
    curve_steps: int = 16
    curve_depth: int = 2
    zero: str = TORCH

    @property
    def head_dim(self) -> int:
        """Channels of one head."""
        return self.channels // self.heads

    @property
    def dense(self) -> bool:
        """Whether every sample fills the grid, so that a batch is ``[B, N, C]``."""
        return self.profile == DENSE

    @property
    def samples(self) -> int:
        """Samples of a step, of all its micro-batches."""
        return self.bs * self.accumulate

    @property
    def lengths(self) -> tuple[int, ...]:
        """Token counts of the step's samples."""
        return step_lengths(
            self.profile, self.bs, self.accumulate, self.tokens, self.cap, self.lengths_seed
        )

    @property
    def flop(self) -> StepFlop:
        """FLOPs of one step."""
        return step_flop(
            self.lengths,
            self.cond_tokens,
            channels=self.channels,
            mlp=self.mlp,
            cond_channels=self.cond_channels,
            depth=self.depth,
            frozen=self.frozen,
        )

    @property
    def parameter_count(self) -> int:
        """Weights of the blocks, biases and embeddings left out (0.3 % at 1.3 B)."""
        c = self.channels
        block = 6 * c * c + 2 * c * self.mlp + 2 * self.cond_channels * c
        return self.depth * block + 6 * c * c

    def scalars(self) -> dict[str, Scalar]:
        """As parameters of a record, with the digest of what the model is.

        PyTorch's way of ZeRO-1 is not named, as one rank is not: a scope without it stays the same.
        """
        values: dict[str, Scalar] = dataclasses.asdict(self)
        if self.zero == TORCH:
            del values[ZERO]
        shape = ("channels", "heads", "depth", "mlp", "cond_channels", "latent")
        values["model_digest"] = digest_of(",".join(f"{name}={values[name]}" for name in shape))
        return values

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> FlowConfig:
        """From a record's parameters; one that an older record lacks has its neutral value."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: parameters[name] for name in names if name in parameters})
