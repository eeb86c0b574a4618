"""One rank: the whole task on this rank's device and shard, and a report of how it went."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.files import write_atomically
from experiments.frozen import REMOVED
from experiments.ranks.report import RankFiles, RankReport
from experiments.spec import DEEPSPEED, by_deepspeed
from experiments.tasks import LIMIT_S, Task
from experiments.worker import Stage, execute
from levers.errors import BadParameter

if TYPE_CHECKING:
    from experiments.ranks.parallel import RankTeam
    from experiments.workloads.base import Session

FAILED = 3
"""Exit code of a rank whose report holds a failure."""

OWN = ("RANK", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES")
"""Variables that each rank has to itself."""


def run_rank(task: Task, rank: int, files: RankFiles, meeting: Path, born: float) -> int:
    """Do the task as one rank and leave its report; returns the exit code."""
    take_place(os.environ, rank, task.ranks, cuda=task.device.startswith("cuda"))
    stage = Stage(files.stage)
    place = Place(task, rank, meeting, stage)
    result = execute(task, stage, born, place.join)
    ended = time.monotonic()
    agree: Mapping[str, str] = {}
    if result.failure is None:
        stage.enter("leave")
        agree = place.leave()
    shard = "" if result.measurement is None else result.measurement.inputs_digest
    report = RankReport(
        rank=rank,
        result=result,
        must_agree=agree,
        must_differ={"shard of the batch": shard} if shard and place.shards else {},
        ended=ended,
    )
    write_atomically(files.report, report.model_dump_json())
    return 0 if result.failure is None else FAILED


def take_place(environ: MutableMapping[str, str], rank: int, ranks: int, *, cuda: bool) -> None:
    """Set the variables that torchrun sets, and show this rank its own device alone.

    One host: gloo talks over the loopback device, whatever the host's name resolves to.
    """
    environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(ranks),
        LOCAL_WORLD_SIZE=str(ranks),
        MASTER_ADDR="127.0.0.1",
        GLOO_SOCKET_IFNAME="lo",
    )
    if cuda:
        shown = environ["CUDA_VISIBLE_DEVICES"].split(",")
        environ["CUDA_VISIBLE_DEVICES"] = shown[rank]


@dataclass(slots=True)
class Place:
    """This rank's place in its group; it joins once its session is open, and its session with it.

    Attributes:
        shards: whether the session takes a part of the global batch; an oracle does not.
    """

    task: Task
    rank: int
    meeting: Path
    stage: Stage
    shards: bool = False
    _team: RankTeam | None = field(default=None)

    def join(self, session: Session) -> None:
        """Meet the other ranks.

        Raises:
            BadParameter: the workload cannot run on several ranks.
        """
        from experiments.ranks.parallel import meet

        self.stage.enter("join")
        self.shards = hasattr(session, "team")
        if not self.shards and self.task.implementation == "engine":
            raise BadParameter(
                f"{self.task.workload} cannot run on several ranks",
                cure="leave out --ranks, or use slat_flow or ss_flow",
            )
        limit_s = self.task.arguments.get(LIMIT_S)
        self._team = meet(
            self.meeting,
            self.rank,
            self.task.ranks,
            cuda=self.task.device.startswith("cuda"),
            limit_s=None if limit_s is None else float(limit_s),
            team=self._kind(),
        )
        if self.shards:
            holder: Any = session
            holder.team = self._team

    def _kind(self) -> type[RankTeam]:
        """How the ranks divide the optimiser's state; an oracle has none."""
        if self.shards and by_deepspeed(self.task.parameters):
            from experiments.ranks.deepspeed_team import DeepSpeedTeam

            return DeepSpeedTeam
        from experiments.ranks.parallel import RankTeam

        return RankTeam

    def leave(self) -> Mapping[str, str]:
        """Wait until all ranks are done, and name what must be equal on all of them."""
        if self._team is None:
            return {}
        agreed = {**surroundings(os.environ), **self._team.agreed}
        self._team.leave()
        return agreed


def surroundings(environ: Mapping[str, str]) -> dict[str, str]:
    """What this rank runs on and with: versions, device, flags, and variables that matter."""
    import torch

    cuda: Any = torch.cuda
    found = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "threads": str(torch.get_num_threads()),
        "precision of fp32 products": torch.get_float32_matmul_precision(),
    }
    if DEEPSPEED in sys.modules:
        found[DEEPSPEED] = str(sys.modules[DEEPSPEED].__version__)
    if cuda.is_initialized():
        device = cuda.get_device_properties(0)
        found |= {
            "device": f"{device.name}, {device.multi_processor_count} multiprocessors",
            "CUDA": str(torch.version.cuda),
            "NCCL": ".".join(map(str, cuda.nccl.version())),
        }
    variables = {
        f"variable {name}": value
        for name, value in environ.items()
        if REMOVED.match(name) and name not in OWN
    }
    return {**found, **variables}
