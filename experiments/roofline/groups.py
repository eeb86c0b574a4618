"""Which group a kernel or operator belongs to, by its name.

The list is closed, and what fits no pattern is ``other``, which is shown like any group. The first
pattern that fits wins. Names are those that PyTorch's profiler reports: CUDA kernels as their
libraries call them, and ATen operators on a CPU.
"""

from __future__ import annotations

import re

from experiments.profiling_records import Group

KERNELS: tuple[tuple[Group, str], ...] = (
    ("communication", r"nccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"),
    (
        "copies",
        r"^memcpy|^memset|copy_kernel_cuda|copy_device_to_device|CatArrayBatchedCopy|^_cast(_both|_four)?$",
    ),
    ("optimiser", r"adam|multi_tensor_apply|foreach|lamb(?!da)"),
    (
        "attention",
        r"flash|fmha|attention|sdpa|softmax_.*attn|cudnn.*(mha|sdp)|attn|mha_|_fa[234]_|splitkv"
        r"|^_split_kernel|^merge_kernel",
    ),
    (
        "gemm",
        r"gemm|cutlass|cublas|nvjet|xmma|wgmma|ampere_.*_tn|sm\d+_.*(gemm|mma)|_mm_|matmul|dot_kernel"
        r"|splitKreduce|gemv|^_one_row|^_few_rows",
    ),
    (
        "reductions",
        r"reduce|segment_sum|indexing_backward|index_put|scatter|cub::|DeviceReduce|sort|radix"
        r"|triton_red|GammaBeta|norm_backward_.*partial"
        r"|^_partial_sums$|^_sum_partials$|^_column_sums$|^_largest$",
    ),
    (
        "row kernels",
        r"elementwise|layer_?norm|rms|modulate|gate_residual|residual|rope|gelu|silu|softmax"
        r"|_norm\b|_norm_|dequantise|^_quantise$|^_forward$|^_backward$"
        r"|triton_(poi|per|fused)|index_select|gather|distribution|fill|where|embedding",
    ),
)
"""Patterns of CUDA kernels, case-insensitive."""

OPERATORS: tuple[tuple[Group, str], ...] = (
    ("communication", r"^c10d::|^gloo:|^nccl:|^record_param_comms"),
    ("optimiser", r"adam|foreach|Optimizer"),
    ("attention", r"scaled_dot_product|flash_attention|attention"),
    (
        "gemm",
        r"aten::(addmm|mm|bmm|baddbmm|matmul|linear|_scaled_mm|mkldnn_linear)$|mkldnn|mkl_"
        r"|^levergate::(linear|linear_gelu|input_grad|gelu_grad|weight_grad|both_grads)$",
    ),
    ("copies", r"aten::(copy_|_to_copy|clone|cat|contiguous|to)$"),
    (
        "reductions",
        r"aten::(sum|mean|index_put_?|_index_put_impl_|index_add_?|scatter|segment_reduce|norm"
        r"|linalg_vector_norm|cumsum|max|min|amax|any|all|argmax|topk|sort|cross_entropy_loss"
        r"|nll_loss)",
    ),
    (
        "row kernels",
        r"aten::(add|sub|mul|div|neg|pow|sqrt|rsqrt|exp|sin|cos|sigmoid|silu|gelu|tanh|relu"
        r"|native_layer_norm|layer_norm|_fused_rms_norm|rms_norm|softmax|_softmax|log_softmax"
        r"|_log_softmax|index|index_select|gather|embedding|where|fill_|zero_|mse_loss|normal_"
        r"|clamp|abs|isfinite|ne|eq|lt|gt|le|ge|logical|bitwise|masked_fill|randn|arange"
        r"|complex|view_as_complex|polar|repeat_interleave|outer|square|lerp|addc|binary_cross)",
    ),
)
"""Patterns of ATen operators."""

HOST = re.compile(
    r"aten::(t|transpose|as_strided|view|_unsafe_view|_reshape_alias|reshape|expand|permute|slice"
    r"|select|split|split_with_sizes|chunk|unsqueeze|squeeze|unbind|narrow|unfold|detach|detach_|alias"
    r"|empty|empty_like|empty_strided|new_empty|new_empty_strided|resize_|resolve_conj|resolve_neg"
    r"|lift_fresh|item|_local_scalar_dense|is_nonzero|result_type|zeros|zeros_like|ones|ones_like|new_zeros"
    r"|broadcast_to|flatten|unflatten|numpy_T|view_as|view_as_real|set_|real|movedim|stack|tensor_split)$"
    r"|^[A-Z][A-Za-z0-9]*$"
    r"|^autograd::|Backward\d*$|^torch::autograd|^profiler|^ProfilerStep|^## |^Torch-Compiled"
)
"""Operators that move no data: dispatch, views, allocation, the autograd engine.

A bare name in capitals is an autograd function written in Python (``FusedModulate``): what it calls
counts under its own name, and what is left of its own time is Python.
"""

_KERNELS = tuple((group, re.compile(pattern, re.IGNORECASE)) for group, pattern in KERNELS)
_OPERATORS = tuple((group, re.compile(pattern, re.IGNORECASE)) for group, pattern in OPERATORS)


def of_kernel(name: str) -> Group:
    """The group of a CUDA kernel, memory copy or memory set."""
    return next((group for group, pattern in _KERNELS if pattern.search(name)), "other")


def of_operator(name: str) -> Group:
    """The group of an operator on a CPU; what only dispatches belongs to the host's gap."""
    if HOST.search(name):
        return "host gap"
    return next((group for group, pattern in _OPERATORS if pattern.search(name)), "other")


def union_ms(intervals: list[tuple[float, float]]) -> float:
    """Length of the union of intervals in microseconds, in ms: what ran at once counts once."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total / 1e3
