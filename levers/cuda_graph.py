"""The decode step replayed from a CUDA graph instead of launched operation by operation.

What changes: nothing that is computed. The reference calls every operation of the step from Python
and waits for the launches; here the step of each concurrency is captured once, untimed, and then
replayed as one launch. Kernels, their arguments and their order are the same, so the lever claims
byte-exact.

Mechanism: a block of the step is some 25 launches from Python at several microseconds each. Where
the kernels of a small batch are shorter than that, the device waits for the host; a graph's nodes
follow each other without the host, because the driver has the whole step at once.

Where it does not help: large batches and large models, whose kernels hide the launches; a CPU,
which has no graphs; work whose shapes change from step to step, since each shape needs a capture
and the memory that belongs to it. A session that captures by itself has nothing left to switch.

Sources: CUDA C Programming Guide, section CUDA Graphs; PyTorch notes, CUDA semantics (CUDA Graphs).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from levers.base import OFF, Facts, OpCase, Site
from levers.decode_lever import DecodeLever
from levers.policy import ParityClass

SITE = "decode.step"


class CudaGraph(DecodeLever):
    """Asks the engine for its captured step."""

    name = "cuda_graph"
    summary = "decode step replayed from a CUDA graph"
    env = "LEVER_CUDA_GRAPH"
    touches = (SITE,)
    claims = ParityClass.BYTE_EXACT

    def operation(self, site: Site, setting: str) -> Callable[..., Any]:
        """A function from the engine and a number of slots to the replayed step."""
        del site, setting
        return captured_step

    def unmet(self, facts: Facts, setting: str) -> tuple[str, ...]:
        """It needs CUDA, a step that is not captured anyway, and an attention that can be."""
        if setting == OFF:
            return ()
        reasons = [f"{facts.workload} has no site {SITE}"] if SITE not in facts.sites else []
        if facts.device_type != "cuda":
            reasons.append(f"a {facts.device_type} has no CUDA graphs: run it with --device cuda:0")
        elif facts.parameters.get("graph") == "on":
            reasons.append("the workload captures its step already: add --set graph=off")
        elif facts.parameters.get("attn") == "torch":
            reasons.append(
                "attn=torch reads lengths on the host, which cannot be captured: "
                "add --set attn=triton"
            )
        return tuple(reasons)

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        """A small gated MLP, launched and replayed."""
        del setting
        from levers.kernels.cuda_graph_cases import op_cases

        return op_cases(device)


def captured_step(engine: Any, count: int) -> Callable[[], Any]:
    """The replayed step of the first ``count`` slots; the engine captures it at its first use."""
    step: Callable[[], Any] = engine.captured(count)
    return step


LEVER = CudaGraph()
