"""The backends of the decode attention: our split-KV, flash-attention 2 and 3 over the same cache.

Shape suffixes as in :mod:`levers.kernels.split_kv`. Both libraries read a cache ``[.., tokens,
heads, D]`` through its strides, so ours ``[.., heads, tokens, D]`` goes in transposed, as a view.
The new token is in the cache already. The output is written in place: the functions that users call
return a new tensor, which would cost a copy a layer, so the operators below them are called with
``out``. Nothing is read back on the host, and all work space is taken by the libraries in the
launch, so that a launch can be captured.

Sources: flash-attn 2.8.3 ``flash_attn/flash_attn_interface.py`` (``flash_attn_with_kvcache``) and
``csrc/flash_attn/flash_api.cpp`` (``mha_fwd_kvcache``: with fewer KV heads than query heads the
query is turned to ``[B, G, K, D]``, and so must ``out`` be); flash-attention ``hopper/
flash_attn_interface.py`` (``flash_attn_3::fwd``).
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from levers.kernels.decode_attn_needs import FA2_PAGE
from levers.kernels.split_kv import (
    Backend,
    PagedKV,
    SplitPlan,
    Workspace,
    check_heads,
    decode_attention,
)

Launch = Callable[[Tensor, PagedKV, SplitPlan, Tensor, Workspace], int]
"""``launch(q_BHD, kv, plan, out_BHD, workspace) -> splits asked for``."""

ALL = -1
"""A window without an end."""
NO_SOFTCAP = 0.0


class OwnAttention:
    """Our split-KV, by the plain form or the Triton kernel; ``ran`` is the backend's name."""

    def __init__(self, backend: Backend) -> None:
        self.ran: Backend = backend

    def __call__(
        self, q_BHD: Tensor, kv: PagedKV, plan: SplitPlan, out_BHD: Tensor, workspace: Workspace
    ) -> int:
        """Write ``out_BHD``; the number of splits launched."""
        return decode_attention(q_BHD, kv, plan, out_BHD, workspace, self.ran)


class Fa2Attention:
    """Flash-attention 2's ``fwd_kvcache``; ``ran`` is the backend's name."""

    ran = "fa2"

    @functools.cached_property
    def _forward(self) -> Callable[..., Any]:
        """The operator, loaded at the first launch."""
        interface = importlib.import_module("flash_attn.flash_attn_interface")
        found: Callable[..., Any] = interface.flash_attn_gpu.fwd_kvcache
        return found

    def __call__(
        self, q_BHD: Tensor, kv: PagedKV, plan: SplitPlan, out_BHD: Tensor, workspace: Workspace
    ) -> int:
        """Write ``out_BHD``; the number of splits asked for.

        Raises:
            ValueError: pages whose size is no multiple of 256, or a type of other than 16 bits.
        """
        del workspace
        k_heads = _checked(q_BHD, kv)
        if not kv.contiguous and kv.page_size % FA2_PAGE:
            raise ValueError(
                f"fa2 reads pages of {FA2_PAGE} slots or a multiple, not {kv.page_size}"
            )
        batch, heads, dim = q_BHD.shape
        grouped = out_BHD.view(batch, k_heads, heads // k_heads, dim).transpose(1, 2)
        rows, table = (kv.table_BM[:, 0], None) if kv.contiguous else (None, kv.table_BM)
        self._forward(
            q_BHD.unsqueeze(1),
            kv.k_PKSD.transpose(1, 2),
            kv.v_PKSD.transpose(1, 2),
            None,  # new keys: in the cache already
            None,
            kv.lengths_B,
            None,  # rotary cosines: applied already
            None,
            rows,
            None,  # padding on the left
            table,
            None,  # ALiBi slopes
            out_BHD.unsqueeze(1) if heads == k_heads else grouped,
            1.0 / math.sqrt(dim),
            False,  # causal: one query at the end sees everything
            ALL,
            ALL,
            NO_SOFTCAP,
            False,  # interleaved rotary
            plan.num_splits,
        )
        return plan.num_splits


class Fa3Attention:
    """FlashAttention-3's forward; ``ran`` is the backend's name.

    With lengths on the device it takes the number of splits as the most of any sequence and decides
    each sequence's in a small kernel before; 0 leaves the most to it as well.
    """

    ran = "fa3"

    @functools.cached_property
    def _forward(self) -> Callable[..., Any]:
        """The operator, loaded at the first launch."""
        interface = importlib.import_module("flash_attn_interface")
        found: Callable[..., Any] = interface.flash_attn_3_gpu.fwd
        return found

    def __call__(
        self, q_BHD: Tensor, kv: PagedKV, plan: SplitPlan, out_BHD: Tensor, workspace: Workspace
    ) -> int:
        """Write ``out_BHD``; the most splits asked for.

        Raises:
            ValueError: a type of other than 16 bits.
        """
        del workspace
        _checked(q_BHD, kv)
        where = (
            {"kv_batch_idx": kv.table_BM[:, 0]} if kv.contiguous else {"page_table": kv.table_BM}
        )
        self._forward(
            q_BHD.unsqueeze(1),
            kv.k_PKSD.transpose(1, 2),
            kv.v_PKSD.transpose(1, 2),
            out=out_BHD.unsqueeze(1),
            seqused_k=kv.lengths_B,
            softmax_scale=1.0 / math.sqrt(q_BHD.shape[2]),
            num_splits=plan.num_splits,
            **where,
        )
        return plan.num_splits


def attention_by(backend: str) -> Launch:
    """The launch of a backend: ``torch``, ``triton``, ``fa2`` or ``fa3``.

    Raises:
        ValueError: there is no such backend.
    """
    if backend == "torch":
        return OwnAttention("torch")
    if backend == "triton":
        return OwnAttention("triton")
    if backend == "fa2":
        return Fa2Attention()
    if backend == "fa3":
        return Fa3Attention()
    raise ValueError(f"no decode attention {backend!r}; there are torch, triton, fa2 and fa3")


def _checked(q_BHD: Tensor, kv: PagedKV) -> int:
    """The number of KV heads of a launch that both libraries can take."""
    if q_BHD.dtype.itemsize != 2:
        raise ValueError(f"flash-attention computes in 16 bits, not in {q_BHD.dtype}")
    return check_heads(q_BHD, kv)
