"""The process under the sanitizer: the chosen op cases, the candidate once each, or a stray write.

Started as ``python -m experiments.parity.memcheck_cases TASK.json`` (or ``--control``). With
``--products`` products of PyTorch's own run, with ``--memory`` the candidates on filled memory
(:mod:`experiments.parity.fresh_memory`), without a sanitizer.
"""

from __future__ import annotations

import sys
from pathlib import Path

from experiments.parity.memcheck_choice import chosen
from experiments.parity.sanitizer_doubts import MEMORY, MemoryAnswer
from experiments.parity.sanitizer_report import CASE, END
from experiments.tasks import Task

PRODUCTS = ((256, 256, 256), (1024, 1536, 1536), (512, 8192, 1536), (4096, 1536, 8192))
"""Rows, columns and inner size of the products that run without a candidate."""


def say(line: str) -> None:
    """Print a line in one write, since the tool writes into the same file meanwhile."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run_cases(path: Path) -> None:
    """Run each chosen case's candidate once; truth and reference are not what is under test."""
    import torch

    from experiments.parity import op
    from experiments.parity.op_run import poisoned

    task = Task.model_validate_json(path.read_text())
    for case in chosen(op.cases_of(task)):
        say(f"{CASE}{case.name}")
        poisoned(case, case.candidate, case.inputs(task.seed))
    torch.cuda.synchronize()
    say(END)


def run_products() -> None:
    """Products of PyTorch's own in bf16, in the layouts of a Linear and its gradients."""
    import torch

    for rows, columns, inner in PRODUCTS:
        left, right, back = (
            torch.ones(size, dtype=torch.bfloat16, device="cuda")
            for size in ((rows, inner), (columns, inner), (rows, columns))
        )
        torch.nn.functional.linear(left, right, right[:, 0])
        torch.mm(back, right)
        torch.mm(back.t(), left)
        torch.mm(back.t(), left, out_dtype=torch.float32)
    torch.cuda.synchronize()
    say(END)


def fill_memory(path: Path) -> None:
    """Say whether an output of a candidate hangs on what fresh memory holds."""
    import torch

    from experiments.parity import fresh_memory, op

    task = Task.model_validate_json(path.read_text())
    cases = chosen(op.cases_of(task))
    found = MemoryAnswer(
        cases=len(cases),
        power=fresh_memory.has_power(task.own_device),
        faults=fresh_memory.faults(cases, task.seed),
        capability=() if task.device == "cpu" else torch.cuda.get_device_capability(),
    )
    say(f"{MEMORY}{found.model_dump_json()}")


def stray_write() -> None:
    """One write past the end of an allocation, which memcheck must see."""
    import torch

    from experiments.parity import memcheck_control

    memcheck_control.launch(torch.zeros(1024, device="cuda"))
    torch.cuda.synchronize()
    say(END)


if __name__ == "__main__":
    if sys.argv[1] == "--control":
        stray_write()
    elif sys.argv[1] == "--products":
        run_products()
    elif sys.argv[1] == "--memory":
        fill_memory(Path(sys.argv[2]))
    else:
        run_cases(Path(sys.argv[1]))
