"""The products of Qwen3-0.6B and -4B that ``mxfp4_gemv --variants`` cuts, and their calls."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.mxfp4_gemv import MODELS
from levers.kernels.mxfp4_layout import UNIT_INPUTS, dequantise_torch, units_of
from levers.kernels.mxfp4_matrix import Mxfp4Weight
from levers.kernels.mxfp4_plans import Plan, even_depth, row_class, rule

LARGEST_ERROR = 2.0**-7
"""Of the norm, of a right cut: two roundings to bf16, and the gate's."""
WARPS = {1: (2, 4, 8), 8: (4, 8), 16: (4, 8), 32: (4, 8)}
ROUNDS = {1: (1, 2, 3), 8: (1, 2), 16: (1, 2)}
SHALLOW, MOST_DEPTH = (1, 2), 10
"""What is tried, by the class of rows: depths of so many equal rounds; above 16 rows these."""
MANY_RESULTS = 16384
"""From so many on, two tiles a program are tried with few rows as well."""
EARLY, BEST = {1: ("start", "end"), 8: ("end",), 16: ("end",), 32: ("end",)}, 2
"""Launches that are tried with so many of the fastest cuts."""
FEWEST_PROGRAMS = 32
MOST_LANE_REGISTERS, MOST_REGISTERS = 255, 65536
"""Of a lane, and of an SM."""


@dataclass(frozen=True)
class Product:
    """One matrix of a model at a number of rows."""

    model: str
    matrix: str
    rows: int
    outputs: int
    inputs: int

    @property
    def gate(self) -> bool:
        return self.matrix == "gate_up"

    @property
    def normed(self) -> bool:
        """Whether add and norm stand before it, and are timed with it."""
        return self.matrix in ("qkv", "gate_up")

    @property
    def results(self) -> int:
        return self.outputs // 2 if self.gate else self.outputs

    @property
    def weight_bytes(self) -> int:
        return self.outputs * self.inputs * 17 // 32

    def own(self) -> Plan:
        return rule(self.results, self.inputs, self.rows, gate=self.gate)

    def plans(self) -> list[Plan]:
        """The rule's own first, then others of equal rounds; none is launched early."""
        own, rows = self.own(), row_class(self.rows)
        found = [own]
        two = rows > 8 or (self.results >= MANY_RESULTS and not self.gate)
        for tiles, warps in itertools.product((1, 2) if two else (1,), WARPS[rows]):
            steps = -(-self.inputs // (UNIT_INPUTS * warps))
            depths = {even_depth(steps, -(-steps // count)) for count in ROUNDS.get(rows, ())}
            for depth in sorted(depths or SHALLOW):
                one = Plan(tiles, warps, depth)
                if one not in found and self.fits(one):
                    found.append(one)
        return found

    def early(self, rows: list[dict[str, Any]]) -> list[Plan]:
        """The fastest cuts among some results, launched early."""
        right = [one for one in rows if "us" in one and one["error"] <= LARGEST_ERROR]
        right.sort(key=lambda one: one["us"])
        return [
            replace(Plan(**one["plan"]), early=early)
            for one in right[:BEST]
            for early in EARLY[row_class(self.rows)]
        ]

    def fits(self, plan: Plan) -> bool:
        """Whether a cut has registers for its depth (an estimate) and programs for the device."""
        tiles, eights = plan.tiles * (2 if self.gate else 1), -(-self.rows // 8)
        registers = 35 + 9 * tiles * (plan.depth + 1) + 24 * eights + 4 * tiles * eights
        full = plan.programs(self.results) >= FEWEST_PROGRAMS
        shallow = plan.depth <= MOST_DEPTH and plan.warps <= max(self.inputs // UNIT_INPUTS, 2)
        small = registers <= MOST_LANE_REGISTERS
        return full and shallow and small and registers * 32 * plan.warps <= MOST_REGISTERS

    def kernel(self, plan: Plan) -> tuple[Plan, int, bool, bool, bool]:
        """What the kernel of a cut is compiled for: products that agree in it share one."""
        columns = next(most for most in (1, 8, 16, 32) if most >= self.rows)
        units = self.inputs // UNIT_INPUTS
        once = units <= plan.warps * plan.depth
        ragged = units % (plan.warps * (1 if once else plan.depth)) != 0
        return plan, columns, self.gate, once, ragged

    def tensors(self, device: str, copies: int) -> tuple[Tensor, list[Mxfp4Weight]]:
        """Rows and random matrices, whose weights are of the usual size."""
        generator = torch.Generator(device).manual_seed(self.rows)
        x = torch.randn(self.rows, self.inputs, device=device, generator=generator)
        shape = units_of(self.outputs, self.inputs)
        return x.to(torch.bfloat16 if device != "cpu" else torch.float32), [
            Mxfp4Weight(
                torch.randint(
                    -(2**31), 2**31, (*shape, 2, 32, 4),
                    device=device, dtype=torch.int32, generator=generator,
                ),
                torch.randint(
                    115, 122, (*shape, 16, 4),
                    device=device, dtype=torch.uint8, generator=generator,
                ),
                self.outputs,
                self.inputs,
            )
            for _ in range(copies)
        ]  # fmt: skip


def products(models: list[str], rows: list[int]) -> list[Product]:
    """Fewer rows first, and the larger model."""
    return [
        Product(model, matrix, count, *shape)
        for count in rows
        for model in sorted(models, reverse=True)
        for matrix, shape in MODELS[model].items()
    ]


def call(product: Product, x: Tensor, weight: Mxfp4Weight, plan: Plan) -> Tensor:
    """One launch; on a CPU the plain path."""
    if x.device.type == "cpu":
        return weight.swiglu(x) if product.gate else weight.linear(x)
    from levers.kernels.mxfp4_launch import Epilogue
    from levers.kernels.mxfp4_launch import product as launch

    return launch(x, weight, Epilogue(gate=product.gate), plan)


def step(product: Product, x: Tensor, weight: Mxfp4Weight, plan: Plan) -> Tensor:
    """The product with what stands before it in a decode step: add and norm, or nothing."""
    if product.normed and x.device.type == "cuda":
        from levers.kernels.mxfp4_norm_triton import stream_norm_triton

        x = stream_norm_triton(x, x, x[0], 1e-6, torch.empty_like(x))
    return call(product, x, weight, plan)


def truth(product: Product, x: Tensor, weight: Mxfp4Weight) -> Tensor:
    """PyTorch's product with the same weights, in fp32."""
    plain = dequantise_torch(
        weight.words, weight.codes, weight.outputs, weight.inputs, torch.float32
    )
    found = functional.linear(x.float(), plain)
    if product.gate:
        gate, up = found.chunk(2, dim=-1)
        found = functional.silu(gate) * up
    return found
