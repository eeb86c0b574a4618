"""What the lever puts in the site of the weights: each matrix in MXFP4, as it is loaded."""

from __future__ import annotations

from torch import Tensor

from levers.kernels.mxfp4 import refusal
from levers.kernels.mxfp4_matrix import Mxfp4Weight, quantise


def keep_mxfp4(name: str, tensor_EC: Tensor) -> Tensor | Mxfp4Weight:
    """The matrix in MXFP4, or as it is where it has no such form; the site's witness tells which.

    Args:
        name: the matrix's, such as ``gate_up``; all are treated alike, the head among them.
        tensor_EC: outputs by inputs; what is handed back holds no view of it.
    """
    del name
    return tensor_EC if refusal(tensor_EC) else quantise(tensor_EC)
