"""The process under the sanitizer: the chosen op cases, the candidate once each, or a stray write.

Started as ``python -m experiments.parity.memcheck_cases TASK.json`` (or ``--control``).
"""

from __future__ import annotations

import sys
from pathlib import Path

from experiments.parity.memcheck_choice import chosen
from experiments.parity.sanitizer_report import END
from experiments.tasks import Task


def run_cases(path: Path) -> None:
    """Run each chosen case's candidate once; truth and reference are not what is under test."""
    import torch

    from experiments.parity import op
    from experiments.parity.op_run import poisoned

    task = Task.model_validate_json(path.read_text())
    for case in chosen(op.cases_of(task)):
        poisoned(case, case.candidate, case.inputs(task.seed))
    torch.cuda.synchronize()
    print(END, flush=True)


def stray_write() -> None:
    """One write past the end of an allocation, which memcheck must see."""
    import torch

    from experiments.parity import memcheck_control

    memcheck_control.launch(torch.zeros(1024, device="cuda"))
    torch.cuda.synchronize()
    print(END, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--control":
        stray_write()
    else:
        run_cases(Path(sys.argv[1]))
