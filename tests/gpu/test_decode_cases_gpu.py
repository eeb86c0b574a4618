"""Every op case of the decode levers in a CUDA graph: it can be captured and replays its bits.

The levers are measured beside the captured step, so that each comparison asks this of its lever.
"""

from __future__ import annotations

import pytest
import torch

from experiments.parity import graph, op
from experiments.spec import LeverSetting
from experiments.tasks import Task
from levers.base import OFF
from levers.kernels.decode_attn_needs import missing_package

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

LEVERS = (
    "fused_chain=on",
    "qk_norm_rope=on",
    "fused_block=early",
    "mxfp4_weights=on",
    "fa2_nsplits_cap=tuned",
    "decode_attn=fa3",
    "decode_attn=fa2",
)


@pytest.mark.parametrize("text", LEVERS)
def test_each_case_is_captured_and_replays_the_bits_of_the_eager_call(text: str) -> None:
    name, _, setting = text.partition("=")
    if name == "decode_attn" and (missing := missing_package(setting)):
        pytest.skip("; ".join(missing))
    task = Task(
        kind="graph",
        arm="cand",
        workload="decode",
        parameters={},
        device="cuda:0",
        seed=3,
        subject=LeverSetting(lever=name, setting=setting),
        arguments={"ref": OFF},
    )
    cases = op.cases_of(task)
    found = {case.name: graph.replay_case(case, task.seed, case.candidate) for case in cases}
    assert {case: fault for case, fault in found.items() if fault} == {}
    assert any(fault == "" for fault in found.values())  # None: it differs from itself when eager
