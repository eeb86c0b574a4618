"""The kernels' tests run them in Triton's interpreter, where there is one and no CUDA device."""

from __future__ import annotations

import importlib.util
import os

from tests.support.interpreter import look_through_the_language_once

if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton"):
    from triton.runtime import interpreter

    look_through_the_language_once(interpreter)
