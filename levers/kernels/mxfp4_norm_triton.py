"""Device code that stands before an MXFP4 product: residual add and RMS norm of a few rows.

One program a row, which lies in the second-level cache: the launch is all that it costs. It is
apart from the product because a program there has only 16 outputs: for every 8.5 bytes of weights
it would normalise an activation of each row.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor


@functools.cache
def dependent_launches(device: torch.device) -> bool:
    """Whether a device knows programmatic dependent launches."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@triton.jit  # type: ignore[untyped-decorator]
def _stream_norm(  # type: ignore[no-untyped-def]
    x_ptr,
    delta_ptr,
    weight_ptr,
    sum_ptr,
    out_ptr,
    channels,
    eps,
    x_stride,
    delta_stride,
    BLOCK_C: tl.constexpr,
    DELTA: tl.constexpr,
    SUM: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One row.

    EARLY is a programmatic dependent launch, which lets the product behind it ask for its first
    weights at once.
    """
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK_C)
    keep = c < channels
    weight = tl.load(weight_ptr + c, mask=keep, other=0.0).to(tl.float32)
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    stream = tl.load(x_ptr + row * x_stride + c, mask=keep, other=0.0)
    if DELTA:
        delta = tl.load(delta_ptr + row * delta_stride + c, mask=keep, other=0.0)
        stream = (stream.to(tl.float32) + delta.to(tl.float32)).to(out_ptr.dtype.element_ty)
    if SUM:
        tl.store(sum_ptr + row * channels + c, stream, mask=keep)
    wide = stream.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / channels + eps)
    normed = weight * (scale * wide)
    tl.store(out_ptr + row * channels + c, normed.to(out_ptr.dtype.element_ty), mask=keep)


def stream_norm_triton(
    x_NC: Tensor, delta_NC: Tensor | None, weight_C: Tensor, eps: float, sum_NC: Tensor | None
) -> Tensor:
    """RMS norm of ``x (+ delta)``, ``[N, C]``; the rounded sum is written where it is asked for.

    Raises:
        ValueError: a place for the sum that is not contiguous.
    """
    rows, channels = x_NC.shape
    x_NC = x_NC if x_NC.stride(1) == 1 else x_NC.contiguous()
    delta = x_NC if delta_NC is None else delta_NC
    delta = delta if delta.stride(1) == 1 else delta.contiguous()
    out_NC = torch.empty((rows, channels), dtype=x_NC.dtype, device=x_NC.device)
    if sum_NC is not None and not sum_NC.is_contiguous():
        raise ValueError(f"the sum is to be written at strides {sum_NC.stride()}; use a whole one")
    early = dependent_launches(x_NC.device)
    _stream_norm[(rows,)](
        x_NC,
        delta,
        weight_C.contiguous(),
        out_NC if sum_NC is None else sum_NC,
        out_NC,
        channels,
        eps,
        x_NC.stride(0),
        delta.stride(0),
        BLOCK_C=triton.next_power_of_2(channels),
        DELTA=delta_NC is not None,
        SUM=sum_NC is not None,
        EARLY=early,
        num_warps=4 if channels <= 4096 else 8,
        **({"launch_pdl": True} if early else {}),
    )
    return out_NC
