"""What ``torch.compile`` did in this process, for a sample's facts."""

from __future__ import annotations

import sys
from typing import Any

from experiments.values import Scalar


def compile_facts() -> dict[str, Scalar]:
    """Frames and graphs compiled so far, and breaks in them by the first line of their reason.

    One frame and one graph for each compiled part is the ideal; a frame more is a recompilation, a
    graph more is the piece behind a break.
    """
    utils: Any = sys.modules.get("torch._dynamo.utils")
    frames = 0 if utils is None else int(utils.counters["frames"]["total"])
    if not frames:
        return {}
    breaks = utils.counters["graph_break"]
    return {
        "compiled_frames": frames,
        "compiled_graphs": int(utils.counters["stats"]["unique_graphs"]),
        "graph_breaks": sum(breaks.values()),
        "graph_break_reasons": "; ".join(sorted(str(why).splitlines()[0] for why in breaks)),
    }
