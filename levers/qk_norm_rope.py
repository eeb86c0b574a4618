"""RMS norm of the decoder's heads, rotary positions and the split into q, k, v in one kernel.

What changes: between the packed projection and attention the original norms queries and keys
(Qwen3; Llama has no such norm), and turns each by four operations with two copies. Here one launch
reads the projection, norms and turns in registers, and writes queries and keys. The values are a
view.

Mechanism: at a step these tensors are a few kilobytes, so that the time is that of the launches:
about twelve become one. At prefill lengths it is the bytes: the original writes the normed heads,
the halves exchanged, both products and their sum; here each element is read and written once.

Numerics: the norm sums in the order of PyTorch's own kernel and rounds once, both products and the
sum of the rotation are rounded as the separate operations round them. On a CPU, and without a norm,
every bit agrees. On an H200 (torch 2.11, Triton 3.6) 4 of 44 cases did, the others in all but last
bits and no further from fp64; so the lever claims lossless.

Where it does not help: steps that large batches and their matrix products fill. On a CPU there is
no kernel: queries and keys are normed and turned together in PyTorch, in half the calls.

Sources: Zhang and Sennrich 2019, arXiv:1910.07467 (RMS norm); Su et al. 2021, arXiv:2104.09864
(RoPE); transformers ``Qwen3Attention`` (the norm before the rotation); PyTorch
``aten/src/ATen/native/cuda/layer_norm_kernel.cu`` (the order of its sums).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from levers.base import OpCase, Site
from levers.decode_lever import DecodeLever
from levers.policy import ParityClass

SITE = "decode.qk_norm_rope"


class QkNormRope(DecodeLever):
    """Swaps norm, rotation and split for the fused operation."""

    name = "qk_norm_rope"
    summary = "head norm, rotary positions and split of a decoder's projection in one kernel"
    env = "LEVER_QK_NORM_ROPE"
    touches = (SITE,)
    claims = ParityClass.LOSSLESS

    def operation(self, site: Site, setting: str) -> Callable[..., Any]:
        """The fused operation."""
        del site, setting
        from levers.kernels.decode_qk_rope import QkNormRope as Operation

        return Operation()

    def op_cases(self, setting: str, device: str) -> Sequence[OpCase]:
        """Qwen3 and Llama sizes, steps of 1 to 32 rows and a prompt, adversarial values."""
        del setting
        from levers.kernels.decode_qk_rope_cases import op_cases

        return op_cases(device)


LEVER = QkNormRope()
