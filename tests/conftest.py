"""What must hold before any test module is imported: one thread, and Triton's interpreter.

Triton reads ``TRITON_INTERPRET`` when it is imported; without a CUDA device its kernels run in the
interpreter. More threads than one only make two-core machines slower here.
"""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
