"""A lever whose path never ends, with a process of its own beside it."""

from __future__ import annotations

import subprocess
import time
from typing import Any

from tests.support.planted_lever import Launch, Planted


def hang(_: Launch) -> Launch:
    def launch(x_NN: Any, y_NN: Any) -> Any:
        subprocess.Popen(["sleep", "86399"], start_new_session=True)
        time.sleep(86399)

    return launch


LEVER = Planted("planted_hanging", wrap=hang)
