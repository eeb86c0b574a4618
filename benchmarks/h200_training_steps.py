"""What :mod:`.h200_training` runs, in order: each step a command of levergate, or a fast look.

The seconds are what a step takes on one H200 with nothing kept yet. A set of levers becomes one
lever by :func:`benchmarks.whole_stack.plugin`. A published lever is measured with its published
predecessors on in both arms (``--with``).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.whole_stack import SEED

BROADCAST = "segment_sum_broadcast=on"
FUSION = ("fused_modulate=on", "fused_gate_residual=on")
ROWS = ("fused_affine_norm=on", "fused_qk_norm_rope=on")
ATTENTION = "attn_backend=fa4"
PRODUCTS = ("gemm_epilogue_mlp=on", "tuned_gemm=on")

DENSE_SET = (*FUSION, *ROWS, ATTENTION, *PRODUCTS)
PACKED_SET = ("cached_cu_seqlens=on", BROADCAST, *DENSE_SET)

WHOLE, DENSE = "whole_stack", "whole_stack_ss"
BLOCK_FUSION, BLOCK_ROWS, BLOCK_PRODUCTS = "block_fusion", "block_rows", "block_products"

WATERFALL = (
    BROADCAST,
    f"{BLOCK_FUSION}=on",
    f"{BLOCK_ROWS}=on",
    ATTENTION,
    f"{BLOCK_PRODUCTS}=on",
)
"""The published levers in the order in which they were published, each with what came after it."""


PUBLISHED = (
    "segment_sum_broadcast gain=2.10 bs=8",
    "segment_sum_broadcast train/mfu_true=23.8 bs=8",
    f"{BLOCK_FUSION} gain=1.15 bs=8",
    f"{BLOCK_FUSION} train/mfu_true=26.8 bs=8",
    "attn_backend gain=1.10 bs=8",
)
"""The published figures of the packed step, which stand beside our rows."""


@dataclass(frozen=True, slots=True)
class Step:
    """One command.

    Attributes:
        name: ``item.what``; the item is what ``--only`` takes.
        words: of levergate; :data:`RUN` stands for the run of the step named by ``home``.
        seconds: what it takes on one H200.
        module: a benchmark that is run with the words, in place of levergate.
        home: the step whose home it works in; its own if empty.
        makes: name of the trained weights that the module leaves.
        needs: name of the trained weights that it works on; :data:`MODEL` stands for their folder.
        parts: comparisons whose parity alone is run, each with the words, in its own home.
        at_once: how many of them run side by side.
    """

    name: str
    words: tuple[str, ...]
    seconds: float
    module: str = ""
    home: str = ""
    makes: str = ""
    needs: str = ""
    parts: tuple[Step, ...] = ()
    at_once: int = 1

    @property
    def item(self) -> str:
        """What ``--only`` takes beside the whole name."""
        return self.name.partition(".")[0]

    @property
    def kind(self) -> str:
        """What it leaves: ``ab``, ``stack``, ``screen``, ``roofline``, ``campaign``, ``weights``,
        ``look``, or ``parity`` of its parts."""
        if self.parts:
            return "parity"
        if self.module:
            return "weights" if self.makes else "look"
        return "screen" if "--screen" in self.words else self.words[0]

    @property
    def resumable(self) -> bool:
        """Whether it goes on where it was interrupted."""
        return self.kind in ("ab", "stack", "campaign", "parity")


RUN, MODEL = "RUN", "MODEL"


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the work is: as published on a GPU, or a rehearsal.

    Attributes:
        device: where it runs.
        packed, dense: parameters of all steps of the two workloads.
        small: parameters that the rehearsal puts in the place of a step's own, by name.
        absent: levers without a kernel for that device, left out of every set.
        batches: settings of ``per_gpu_batch``.
        published: figures of the same work, of others, for the waterfall.
        whole, whole_dense: all levers of the packed and of the dense step.
    """

    device: str
    packed: Mapping[str, str]
    dense: Mapping[str, str]
    small: Mapping[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    batches: str = "2,4,8,12"
    published: tuple[str, ...] = PUBLISHED
    whole: tuple[str, ...] = PACKED_SET
    whole_dense: tuple[str, ...] = DENSE_SET

    @property
    def named(self) -> Mapping[str, tuple[str, ...]]:
        """The sets, by the name of the lever that stands for them all."""
        return {
            WHOLE: self.levers(self.whole),
            DENSE: self.levers(self.whole_dense),
            BLOCK_FUSION: FUSION,
            BLOCK_ROWS: self.levers(("cached_cu_seqlens=on", *ROWS)),
            BLOCK_PRODUCTS: PRODUCTS,
        }

    def levers(self, named: Sequence[str]) -> tuple[str, ...]:
        """Those that have a kernel here."""
        return tuple(one for one in named if one.partition("=")[0] not in self.absent)

    def sets(self, workload: str, own: Mapping[str, str]) -> list[str]:
        """The parameters of a step as ``--set``."""
        base = self.packed if workload == "slat_flow" else self.dense
        mine = {name: self.small.get(name, value) for name, value in own.items()}
        pairs = {**base, **mine}.items()
        return list(itertools.chain.from_iterable(("--set", f"{k}={v}") for k, v in pairs))

    def ab(
        self,
        lever: str,
        cand: str,
        workload: str,
        *extra: str,
        beside: Sequence[str] = (),
        **own: str,
    ) -> tuple[str, ...]:
        """An A/B, with levers that are on in both arms."""
        both = itertools.chain.from_iterable(("--with", one) for one in self.levers(beside))
        return (
            *("ab", lever, "--cand", cand, "--workload", workload, "--device", self.device),
            *self.sets(workload, own),
            *both,
            *("--oracle", "none", *extra, "--yes"),
        )

    def stack(self, workload: str, levers: Sequence[str], **own: str) -> tuple[str, ...]:
        """A stack of four blocks, the waterfall alone."""
        return (
            *("stack", workload, "--levers", ",".join(self.levers(levers))),
            *("--device", self.device, *self.sets(workload, own)),
            *("--blocks", "4", "--no-leave-one-out", "--no-pairs", "--yes"),
        )

    def look(self, workload: str, levers: Sequence[str], **own: str) -> tuple[str, ...]:
        """No lever and all of them in one process."""
        return (
            *(workload, "--device", self.device, *self.sets(workload, own)),
            *("--levers", ",".join(self.levers(levers)), "--whole"),
        )


PAIRS = ("--pairs", "6")
SEEDED = ("--seed", str(SEED))

FULL = Scale(
    "cuda:0",
    packed={"size": "xl", "steps": "3", "warmup": "2"},
    dense={"size": "xl", "steps": "3", "warmup": "2"},
)

TINY = {"channels": "16", "mlp": "16", "cond_channels": "8", "cond_tokens": "4", "depth": "2"}
TINY |= {"bs": "2", "steps": "1", "warmup": "1", "curve_steps": "2", "curve_depth": "1"}

REHEARSAL = Scale(
    "cpu",
    packed={**TINY, "profile": "uniform", "tokens": "48", "cap": "48"},
    dense={**TINY, "grid": "3"},
    small={
        **{name: TINY[name] for name in ("bs", "depth", "curve_depth", "cond_tokens")},
        **{"tokens": "48", "frozen": "1", "curve_steps": "4", "accumulate": "4"},
    },
    absent=("attn_backend", "cached_cu_seqlens"),
    batches="4,8",
    published=(),
)


def steps(scale: Scale) -> tuple[Step, ...]:
    """All steps in the order in which the device is used."""
    return (
        Step("whole.slat", scale.ab(WHOLE, "on", "slat_flow", *PAIRS, *SEEDED), 480),
        *_levers(scale),
        Step("waterfall.groups", _waterfall(scale), 330),
        *_dense(scale),
        *_controls(scale),
        *_beyond(scale),
        Step("roofline.whole", ("roofline", RUN, "--record"), 30, home="whole.slat"),
        Step("roofline.ss", ("roofline", RUN, "--record"), 30, home="ss.whole"),
    )


def _waterfall(scale: Scale) -> tuple[str, ...]:
    """The stack, with the published figures beside its rows."""
    beside = itertools.chain.from_iterable(("--published", one) for one in scale.published)
    return (*scale.stack("slat_flow", WATERFALL), *beside)


def _levers(scale: Scale) -> tuple[Step, ...]:
    """The published levers; the first of them had its verdict before, and is measured last."""
    fusion = scale.ab(BLOCK_FUSION, "on", "slat_flow", *PAIRS, beside=[BROADCAST])
    compiled = scale.ab("compile_ss_flow", "on", "ss_flow", *PAIRS, bs="2")
    packed = scale.ab(
        "attn_backend", "fa4", "slat_flow", *PAIRS, beside=[BROADCAST, f"{BLOCK_FUSION}=on"]
    )
    dense = scale.ab(
        "attn_backend", "fa4", "ss_flow", *PAIRS, beside=["compile_ss_flow=on"], bs="2"
    )
    return (
        Step("levers.block_fusion", fusion, 300),
        Step("levers.compile", compiled, 320),
        Step("levers.attention_slat", packed, 280),
        Step("levers.attention_ss", dense, 320),
        Step("levers.broadcast", scale.ab("segment_sum_broadcast", "on", "slat_flow", *PAIRS), 300),
    )


def _dense(scale: Scale) -> tuple[Step, ...]:
    """The dense step: a look at batch 8, and the A/B at the largest batch of its reference."""
    look = scale.look("ss_flow", scale.whole_dense, bs="8", steps="6", warmup="3")
    return (
        Step("ss.look", look, 40, module="benchmarks.flow_steps"),
        Step("ss.whole", scale.ab(DENSE, "on", "ss_flow", *PAIRS, *SEEDED, bs="6"), 420),
    )


def _controls(scale: Scale) -> tuple[Step, ...]:
    """Training curves of 200 steps, and the control: fewer trained broadcasts, a smaller gain."""
    curve = scale.stack(
        "slat_flow",
        [f"{WHOLE}=on"],
        depth="6",
        bs="4",
        profile="uniform",
        tokens="1024",
        cond_tokens="512",
        curve_steps="200",
        curve_depth="6",
    )
    frozen = scale.stack("slat_flow", [BROADCAST], frozen="24")
    return (
        Step("curve.loss", curve, 170),
        Step("frozen.segment_sum", frozen, 150),
    )


def _beyond(scale: Scale) -> tuple[Step, ...]:
    """Other micro-batches of one global batch, and products of 8 bits: with all that stands beside.

    Eight-bit products take the place of the other products.
    """
    batches = scale.ab(
        "per_gpu_batch",
        scale.batches,
        "slat_flow",
        "--screen",
        beside=scale.whole,
        bs="6",
        accumulate="4",
    )
    products = {one.partition("=")[0] for one in PRODUCTS}
    base = [one for one in scale.whole if one.partition("=")[0] not in products]
    eight_bits = scale.ab("fp8_linear", "e4m3", "slat_flow", *PAIRS, beside=base)
    return (
        Step("batch.screen", batches, 90),
        Step("fp8.e4m3", eight_bits, 350),
    )
