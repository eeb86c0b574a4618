"""What :mod:`.h200_decode` runs, in order: trained weights, verdicts of the levers, the row, sizes.

The seconds are what a step takes on one H200 until its first look, with nothing kept yet but what
the oracle compiled in the step before it. A lever of the campaign's row is measured in a comparison
of its own with the campaign's parameters, beside the levers that it needs; the campaign takes these
verdicts in and measures what is left: the binding run. Speed is measured on random weights of
0.6 B, so each comparison decodes its prompts with trained ones: those that ship, those that are
trained here first, and the latter quantised.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import h200_parity
from benchmarks.h200_training_steps import MODEL, Step

TRAINED = "trained"
"""The weights that :data:`TRAIN` makes."""

TRAIN = "experiments.workloads.decode.train"
CAPTURED, BLOCK, PACKED = "cuda_graph=on", "fused_block=early", "mxfp4_weights=on"

LEVERS: tuple[tuple[str, str, tuple[str, ...], int], ...] = (
    ("cuda_graph", "on", (), 320),
    ("fused_block", "early", (CAPTURED,), 300),
    ("fused_chain", "on", (CAPTURED,), 250),
    ("mxfp4_weights", "on", (CAPTURED, BLOCK), 260),
    ("qk_norm_rope", "on", (CAPTURED,), 250),
    ("fa2_nsplits_cap", "tuned", (CAPTURED,), 250),
    ("decode_attn", "fa3", (CAPTURED,), 260),
)
"""Lever, setting, what is on in both arms, seconds. ``fused_chain`` and ``qk_norm_rope`` have no
work in a step of the fused block, so they stand beside the graph alone."""

SHIPPED = "shipped"

TOKENS_S = 50
"""Seconds more, of processes side by side, for the tokens on three models: alone a stream takes 32
steps, under load 128, and there are 184 of them three times on each model."""

PLAIN = "plain"
"""Parity of each lever without the tokens of named models: operation, determinism, async, smoke and
rollback pass there and are found again. It has no need of trained weights, so it runs beside their
training."""

OPERATION_S = {"fused_block": 125, "fa2_nsplits_cap": 83, "mxfp4_weights": 35}
"""Of the op cases that take longest, seen on an H200: they come first."""

FIRST = 4
"""Levers of the first of the two steps that take parity alone."""

NO_KERNEL = ("decode_attn",)
"""FlashAttention-3 has no kernel for heads of 16 dimensions, which are those of the shipped model:
its tokens are compared on the trained one alone, plain and quantised."""

PAIRS, FEW, MORE = ("--pairs", "6"), ("--pairs", "9"), ("--pairs", "13")
"""A run ends at the first look that decides: six pairs for an effect of several percent. The second
look is for a guard that six leave open, the third for axes that may be neutral."""

LARGE_EFFECTS = ("cuda_graph", "fused_block", "mxfp4_weights")
"""Levers that moved a step by tens of percent in fast looks; a second look is for their guards."""

SCREEN = ("--screen", "--budget", "60s")
"""After this time no further two rounds begin."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the work is: real, or a rehearsal.

    Attributes:
        device: where it runs.
        small, large: the model of the row, and the larger one.
        row: parameters of the campaign's row, where they differ from the defaults. A prefill of
            0.6 B is bound by the device, and not by the host that launches it, from some 5,000
            tokens on.
        large_row: what differs at the larger model, whose prefill is bound by it sooner.
        tokens: parameters of what is timed on trained weights.
        train: words of the training, without its text.
        campaign: name of the campaign.
        oracle: of the levers' comparisons, and of the larger model's whole set.
        absent: levers without a kernel for that device.
        swapped: settings in place of those of :data:`LEVERS`.
        graphs: whether steps are captured, by parameter where no lever does it.
        counts: numbers of splits that are screened.
        text: folder of text to train on; what is found beside PyTorch if empty.
        short_tokens: length of the short contexts.
        parity: levers whose parity runs side by side, and the processes of each. Processes take
            turns on a device: with four levers and twelve processes none was through after 835 s
            on an H200. One after the other, so that each finds the streams of the reference that
            the one before it decoded.
    """

    device: str
    small: str
    large: str
    row: Mapping[str, str]
    large_row: Mapping[str, str]
    tokens: Mapping[str, str]
    train: tuple[str, ...]
    campaign: str
    oracle: str
    absent: tuple[str, ...] = ()
    swapped: Mapping[str, str] = field(default_factory=dict)
    graphs: bool = True
    counts: str = "auto,tuned,1..16"
    text: str = ""
    short_tokens: int = 256
    parity: tuple[int, int] = (1, 8)

    def there(self, named: Sequence[str]) -> tuple[str, ...]:
        """Those that have a kernel here."""
        return tuple(one for one in named if one.partition("=")[0] not in self.absent)

    def levers(self) -> tuple[tuple[str, str, tuple[str, ...], int], ...]:
        """:data:`LEVERS` as they can be here."""
        return tuple(
            (name, self.swapped.get(name, setting), self.there(beside), seconds)
            for name, setting, beside, seconds in LEVERS
            if name not in self.absent
        )

    def ab(
        self,
        lever: str,
        cand: str,
        model: str,
        *extra: str,
        beside: Sequence[str] = (),
        oracle: str = "none",
        sets: Mapping[str, str],
    ) -> tuple[str, ...]:
        """An A/B, with levers that are on in both arms."""
        both = itertools.chain.from_iterable(("--with", one) for one in self.there(beside))
        return (
            *("ab", lever, "--cand", cand, "--workload", "decode", "--device", self.device),
            *("--model", model, *set_words(sets), *both, "--oracle", oracle, *extra, "--yes"),
        )

    def stack(
        self, model: str, levers: Sequence[str], *extra: str, sets: Mapping[str, str]
    ) -> tuple[str, ...]:
        """A stack of four blocks, the waterfall alone."""
        model_words = ("--set", f"model={model}")
        return (
            *("stack", "decode", "--levers", ",".join(self.there(levers))),
            *("--device", self.device, *model_words, *set_words(sets)),
            *("--blocks", "4", "--no-leave-one-out", "--no-pairs", *extra, "--yes"),
        )

    def text_folder(self) -> str:
        """Where Python files are: beside PyTorch, hundreds of megabytes of them."""
        found = importlib.util.find_spec("torch")
        if self.text or found is None or found.origin is None:
            return self.text or "."
        return str(Path(found.origin).parents[1])


def set_words(parameters: Mapping[str, str]) -> list[str]:
    """Parameters as ``--set``."""
    words = (("--set", f"{name}={value}") for name, value in parameters.items())
    return list(itertools.chain.from_iterable(words))


FULL = Scale(
    "cuda:0",
    small="random-0.6b",
    large="random-4b",
    row={"concurrency": "1,2,4,8,16,32", "graph": "off", "ttft_tokens": "8192"},
    large_row={"ttft_tokens": "3072"},
    tokens={
        "concurrency": "1,8,32",
        "prompt_tokens": "1024",
        "output_tokens": "64",
        "round_steps": "60",
        "ttft_repeats": "20",
        "ttft_tokens": "512",
    },
    train=("--size", "100m", "--device", "cuda:0", "--seconds", "100", "--threads", "6"),
    campaign="decode-h200",
    oracle="transformers:1,32",
)


def steps(scale: Scale) -> tuple[Step, ...]:
    """All steps in the order in which the device is used."""
    words = ("campaign", "run", scale.campaign, *_tokens_on(scale), "--yes")
    text = ("--text", scale.text_folder(), "--glob", "*.py", "--format", "files")
    return (
        Step("train.weights", (*text, *scale.train), 125, module=TRAIN, makes=TRAINED),
        *_parity(scale),
        *_row(scale),
        Step("campaign.row", words, 720 + TOKENS_S, needs=TRAINED),
        *_large(scale),
        *_quality(scale),
        *_screens(scale),
    )


def _parity(scale: Scale) -> tuple[Step, ...]:
    """Parity of the row's levers: what needs no trained weights, then all in two steps, one for
    each GPU of a host."""
    row = _row(scale)
    plain = sorted(_row(scale, PLAIN), key=lambda one: -one.seconds)
    parts = {PLAIN: plain, "first": row[:FIRST], "second": row[FIRST:]}
    return tuple(h200_parity.step_of(n, some, *scale.parity) for n, some in parts.items() if some)


def _row(scale: Scale, item: str = "lever") -> tuple[Step, ...]:
    """The levers of the row at the row's own parameters; the plain ones decode no tokens."""
    plain = item == PLAIN
    return tuple(
        Step(
            f"{item}.{name}",
            scale.ab(
                name,
                setting,
                scale.small,
                *(FEW if name in LARGE_EFFECTS else MORE),
                *(() if plain else _tokens_on(scale, name, beside)),
                beside=beside,
                oracle=scale.oracle,
                sets=_judged(scale.row, name, scale.small),
            ),
            OPERATION_S.get(name, 20) if plain else seconds + TOKENS_S,
            needs="" if plain else TRAINED,
        )
        for name, setting, beside, seconds in scale.levers()
    )


def _judged(sets: Mapping[str, str], lever: str, model: str) -> Mapping[str, str]:
    """Quantised weights of a trained model are judged by its quality."""
    trained = lever == "mxfp4_weights" and not model.startswith("random-")
    return {**sets, "quality": "on"} if trained else sets


def _large(scale: Scale) -> tuple[Step, ...]:
    """The larger model: what ships against no lever and the oracle, and four bits."""
    packed = "mxfp4_weights"
    rows = [CAPTURED, BLOCK, "fa2_nsplits_cap=auto"] if not scale.graphs else [CAPTURED, BLOCK]
    row = {**scale.row, **scale.large_row}
    whole = scale.stack(scale.large, rows, "--oracle", scale.oracle, sets=row)
    plain = {name: value for name, value in row.items() if name != "graph"}
    sets = _judged(plain, packed, scale.large)
    alone = scale.ab(packed, "on", scale.large, *FEW, sets=sets)
    beside = scale.ab(packed, "on", scale.large, *FEW, beside=[BLOCK], sets=sets)
    return (
        Step("large.mxfp4", alone, 250),
        Step("large.whole", whole, 480),
        Step("large.mxfp4_block", beside, 250),
        Step("large.short", _short(scale), 60, module="benchmarks.decode_steps"),
    )


def _short(scale: Scale) -> tuple[str, ...]:
    """A fast look at the step of one sequence and of 32 with short contexts, the block fused.

    At 2,048 tokens the floor of 32 sequences is 2.1 times that of one, so that their rates differ
    by 15 at most: by then the caches weigh more than the weights.
    """
    levers = ",".join(scale.there([BLOCK])) or "none"
    counts = "1,32" if scale.graphs else "1,2"
    lengths = ("--set", f"prompt_tokens={scale.short_tokens}")
    words = ("--device", scale.device, "--models", scale.large, "--concurrency", counts)
    return (*words, "--levers", levers, *lengths)


def _tokens_on(scale: Scale, lever: str = "", beside: Sequence[str] = ()) -> tuple[str, ...]:
    """The models with which tokens are compared, as words; without a lever those of the row.

    What stands beside the lever is on there, too: its processes then serve both the check of the
    lever and that of the set, and decode as they are captured. The row leaves out by itself what a
    lever of it is on in.
    """
    models = [(MODEL, ())] if lever in NO_KERNEL else [(SHIPPED, ()), (MODEL, ())]
    if lever != PACKED.partition("=")[0] and scale.there([PACKED]):
        models.append((MODEL, (PACKED,)))
    texts = (",".join((model, *more, *scale.there(beside))) for model, more in models)
    return tuple(itertools.chain.from_iterable(("--tokens-on", one) for one in texts))


def _quality(scale: Scale) -> tuple[Step, ...]:
    """Four bits on trained weights, timed: their loss of held-out text is an axis and a guard.

    A comparison on random weights has no such axis, whatever decodes its tokens.
    """
    name = PACKED.partition("=")[0]
    if not scale.there([PACKED]):
        return ()
    words = scale.ab(name, "on", MODEL, *PAIRS, sets=_judged(scale.tokens, name, TRAINED))
    return (Step(f"quality.{name}", words, 150, needs=TRAINED),)


def _screens(scale: Scale) -> tuple[Step, ...]:
    """Numbers of splits for each attention, in one process each."""
    sets = {**scale.row, "ttft_repeats": "20", "ttft_tokens": "16", "rounds": "2"}
    sets |= {"page_size": "256", "graph": "on", "round_steps": "30"} if scale.graphs else {}
    return tuple(
        Step(
            f"screen.{name}",
            scale.ab("fa2_nsplits_cap", counts, scale.small, *SCREEN, beside=beside, sets=sets),
            170,
        )
        for name, beside, counts in (
            ("triton", (), scale.counts),
            ("fa2", ("decode_attn=fa2",), scale.counts),
            ("fa3", ("decode_attn=fa3",), scale.counts),
        )
        if scale.graphs or not beside
    )
