"""The MXFP4 product's machine code, from a process in which Triton compiles."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")

from benchmarks.mxfp4_instructions import counted, disassembler

MOST_A_WEIGHT = 2.6
"""Instructions a weight and lane; 3.9 where operands went through shared memory."""

WORD_LOADS = 3
"""Of a lane for a unit: words twice, codes once."""


def test_the_loop_exchanges_nothing_decodes_in_few_instructions_and_asks_ahead(
    tmp_path: Path,
) -> None:
    if not disassembler().is_file():
        pytest.skip("this Triton comes without nvdisasm")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_DEFAULT_FP_FUSION": "1"}
    command = [sys.executable, "-m", "benchmarks.mxfp4_instructions", "1x4x1", "1x4x5"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("exchanges in the loop: none") == 2
    counts = re.findall(r"in the loop, ([\d.]+) a weight, (\d+) loads", found.stdout)
    assert all(1.5 < float(a_weight) < MOST_A_WEIGHT for a_weight, _ in counts)
    assert int(counts[0][1]) >= WORD_LOADS
    assert int(counts[1][1]) >= 5 * WORD_LOADS


def test_a_loop_is_from_a_label_to_the_jump_back() -> None:
    code = """
        /*0000*/                   IADD3 R0, R1, 0x1, RZ ;
.L_x_1:
        /*0010*/                   LOP3.LUT R9, R1, 0x1, RZ, 0xc0, !PT ;
        /*0020*/              @!P0 SHFL.BFLY PT, R2, R3, 0x2, 0x1f ;
        /*0030*/               @P0 BRA `(.L_x_1) ;
        /*0040*/                   EXIT ;
"""
    found = counted(code, {"D": 2, "M": 1, "W": 4}, 2560)
    assert found.registers == 10
    assert dict(found.loop) == {"LOP3": 1, "SHFL": 1, "BRA": 1}
    assert sum(found.all.values()) == 5
    assert found.weights == 128
    assert found.a_weight == 3 / 128
    assert found.asked_first == 0
