"""Machine instructions of the MXFP4 product for sm_90, counted without a GPU.

    python -m benchmarks.mxfp4_instructions [--rows 1] [--inputs 2560] [--gate] 1x4x5 1x8x2 ...

Each cut (tiles x warps x depth) is compiled by Triton's own compiler and taken apart by the
``nvdisasm`` that comes with it. Printed are registers; all instructions and those of the loop over
steps (none where one round is enough), for a weight and lane; those that exchange data between
threads, of which the loop must have none, since words are stored in the order of the operands; and
the loads in front of the first product, which are on their way together. An SM's four schedulers
have time for 3.7 instructions a weight where 132 of them read 4.3 TB/s at 1.76 GHz.
"""

from __future__ import annotations

import argparse
import collections
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levers.kernels.mxfp4_layout import UNIT_INPUTS

UNIT_WEIGHTS = 64
"""Of a lane in a unit of 16 x 128."""
EXCHANGES = ("SHFL", "STS", "LDS", "LDSM", "STSM")
LINE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)[^;]*;")
LABEL, TARGET = re.compile(r"^\s*(\.L_\w+):"), re.compile(r"BRA\S*\s+`\((\.L_\w+)\)")
POINTERS = {
    "x_ptr": "*bf16", "bias_ptr": "*bf16", "residual_ptr": "*bf16", "out_ptr": "*bf16",
    "words_ptr": "*i32", "codes_ptr": "*i32", "squares_ptr": "*fp32",
}  # fmt: skip
NUMBERS = ("outputs", "inputs", "rows", "tiles", "units", "x_stride")
DIVISIBLE = (*POINTERS, "outputs", "inputs", "x_stride")


@dataclass(frozen=True)
class Counts:
    """One kernel's instructions.

    Attributes:
        registers: of a lane.
        all: by name, of the whole kernel.
        loop: by name, of the longest loop; empty where there is none.
        weights: of a lane in one pass through the loop, or in all without one.
        asked_first: loads from memory in front of the first product, in the loop or, without one,
            in the kernel.
    """

    registers: int
    all: Mapping[str, int]
    loop: Mapping[str, int]
    weights: int
    asked_first: int

    @property
    def a_weight(self) -> float:
        """Instructions a weight and lane, of the loop or, without one, of everything."""
        return sum((self.loop or self.all).values()) / self.weights


def constants(plan: tuple[int, int, int], rows: int, inputs: int, *, gate: bool) -> dict[str, Any]:
    """What the kernel is compiled for."""
    import triton

    from levers.kernels.mxfp4_launch import LAST_OLDER, LAST_QUAD

    tiles, warps, depth = plan
    units = inputs // UNIT_INPUTS
    once = units <= warps * depth
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    return {
        "W": warps,
        "M": tiles * (2 if gate else 1),
        "N": next(columns for columns in (8, 16, 32) if columns >= rows),
        "D": depth,
        "OLDER": version <= LAST_OLDER,
        "QUAD": version <= LAST_QUAD,
        "RAGGED": units % (warps * (1 if once else depth)) != 0,
        "PADDED": False,
        "ONCE": once,
        "SINGLE": rows == 1,
        "BIAS": False,
        "RESIDUAL": False,
        "SQUARES": False,
        "GATE": gate,
        "EARLY": 0,
        "PRECISION": "tf32",
    }


def machine_code(fixed: dict[str, Any]) -> str:
    """The disassembly of the kernel."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from levers.kernels.mxfp4_triton import unit_product

    names = unit_product.arg_names
    signature = {**POINTERS, **dict.fromkeys(NUMBERS, "i32"), **dict.fromkeys(fixed, "constexpr")}
    divisible = {(names.index(name),): [["tt.divisibility", 16]] for name in DIVISIBLE}
    source = ASTSource(unit_product, signature, constexprs=fixed, attrs=divisible)
    options = {"num_warps": fixed["W"], "num_stages": 1}
    kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        tool = str(disassembler())
        return subprocess.run([tool, file.name], capture_output=True, text=True, check=True).stdout


def disassembler() -> Path:
    """Triton's ``nvdisasm``."""
    import triton

    return Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"


def counted(code: str, fixed: Mapping[str, Any], inputs: int) -> Counts:
    """The counts of a disassembly."""
    names: list[str] = []
    labels: dict[str, int] = {}
    loops: list[list[str]] = [[]]
    registers = 0
    for line in code.splitlines():
        if label := LABEL.match(line):
            labels[label[1]] = len(names)
        elif found := LINE.search(line):
            names.append(found[1])
            jump = TARGET.search(line)
            start = labels.get(jump[1], len(names)) if jump else len(names)
            if len(names) - start > 1:  # The last instruction of a kernel jumps to itself.
                loops.append(names[start:])
            registers = max([registers, *(int(r) + 1 for r in re.findall(r"\bR(\d+)", line))])
    loop = max(loops, key=len)
    steps = fixed["D"] if loop else -(-inputs // UNIT_INPUTS) // fixed["W"]
    weights = UNIT_WEIGHTS * fixed["M"] * steps
    body = loop or names
    before = body[: body.index("HMMA")] if "HMMA" in body else body
    return Counts(
        registers,
        collections.Counter(names),
        collections.Counter(loop),
        weights,
        before.count("LDG"),
    )


def main(words: list[str] | None = None) -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plans", nargs="+", metavar="PLAN")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--inputs", type=int, default=2560)
    parser.add_argument("--gate", action="store_true")
    asked = parser.parse_args(words)
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise SystemExit("TRITON_INTERPRET=1 leaves nothing to compile: unset it")
    for text in asked.plans:
        tiles, warps, depth = (int(part) for part in text.split("x"))
        fixed = constants((tiles, warps, depth), asked.rows, asked.inputs, gate=asked.gate)
        found = counted(machine_code(fixed), fixed, asked.inputs)
        moved = {name: found.loop[name] for name in EXCHANGES if found.loop.get(name)}
        print(
            f"{text}: {found.registers} registers, {sum(found.all.values())} instructions, "
            f"{sum(found.loop.values())} in the loop, {found.a_weight:.2f} a weight, "
            f"{found.asked_first} loads before the first product; "
            f"exchanges in the loop: {moved or 'none'}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
