"""The attention backends' glue, with plain PyTorch behind the packages' published signatures.

The kernels themselves need a CUDA device (tests/gpu/test_attention_gpu.py). What is held here is
what we hand to them and what we make of what they return: shapes, strides, offsets, gradients.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from support.fake_attention import Calls, fake_aten, fake_fa2, fake_fa3, fake_fa4
from torch import Tensor

from levers.errors import BadParameter, UnknownName
from levers.kernels import attn_backend
from levers.kernels.attn_backend import PackedAttention, cut_of, function_of, refuse
from levers.kernels.attn_backend_cases import AttentionCase, Samples, per_sample
from levers.kernels.attn_backend_needs import NEEDS, missing_packages
from levers.kernels.qk_norm_rope import qk_norm_rope

RAGGED = ((5, 1, 7), (3, 2, 6))
EQUAL = ((4, 4), (6, 6))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """Every backend runs in plain PyTorch on the CPU and notes its calls."""
    seen: Calls = []
    folder, cute = ModuleType("flash_attn"), ModuleType("flash_attn.cute")
    for module in (folder, cute, fake_fa2(seen), fake_fa3(seen), fake_fa4(seen)):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    ours = [f"levers.kernels.attn_backend_{name}" for name in ("fa2", "fa4", "torch")]
    for name in ours:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(attn_backend, "refuse", lambda backend, q: None)
    monkeypatch.setattr(torch.ops, "aten", _Overlay(fake_aten(seen), torch.ops.aten))
    yield seen
    for name in ours:
        sys.modules.pop(name, None)


class _Overlay:
    """PyTorch's operators with a few replaced."""

    def __init__(self, first: SimpleNamespace, rest: object) -> None:
        self.first, self.rest = first, rest

    def __getattr__(self, name: str) -> Any:
        return getattr(self.first, name, None) or getattr(self.rest, name)


def compute(backend: str, queries: tuple[int, ...], keys: tuple[int, ...]) -> list[Tensor]:
    """Output and gradients of the backend, less fp64 truth."""
    case = AttentionCase(queries, keys, "cpu")
    inputs = tuple(one.double() for one in case.inputs(3))
    found = case.compute(PackedAttention(backend), inputs)
    truth = case.compute(per_sample, inputs)
    return [one - true for one, true in zip(found, truth, strict=True)]


@pytest.mark.parametrize("backend", NEEDS)
@pytest.mark.parametrize(("queries", "keys"), [RAGGED, EQUAL, ((4, 4), (3, 5)), ((6,), (2,))])
def test_each_backend_gives_attention_and_its_gradients(
    calls: Calls, backend: str, queries: tuple[int, ...], keys: tuple[int, ...]
) -> None:
    for gap in compute(backend, queries, keys):
        assert gap.abs().max() < 1e-12
    assert calls


@pytest.mark.parametrize("backend", NEEDS)
def test_values_of_a_projection_that_is_kept_reach_the_kernel_as_a_view(
    calls: Calls, backend: str
) -> None:
    for queries, keys in (RAGGED, EQUAL):
        case = AttentionCase(queries, keys, "cpu")
        q, kv, grad = case.inputs(0)
        case.compute(PackedAttention(backend), (q, kv, grad))
        views = [seen["v"] for _, seen in calls if "v" in seen]
        assert views
        for v in views:
            assert v.untyped_storage().data_ptr() == kv.untyped_storage().data_ptr()
            assert v.stride(-1) == 1
        calls.clear()


def projection(maker: str) -> tuple[Tensor, Tensor, Tensor]:
    """A projection ``[5, 3, 2, 8]``, and the values that a maker leaves of it."""
    packed = torch.randn(5, 3, 2, 8, requires_grad=True)
    gamma = torch.ones(2, 8, requires_grad=True)
    if maker == "fused":
        q, _, v = qk_norm_rope(None, packed, gamma, gamma, None)
        return packed, q, v
    by = torch.compile(split, backend="aot_eager") if maker == "compiled" else split
    q, v = by(packed, gamma)
    return packed, q, v


def split(packed: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    twice = packed * 1.0
    q, _, v = twice.unbind(1)
    return torch.nn.functional.normalize(q, dim=-1) * gamma, v


@pytest.mark.parametrize(("maker", "copied"), [("fused", 0), ("compiled", 0), ("split", 1)])
def test_values_are_copied_only_where_they_alone_would_keep_the_projection(
    maker: str, copied: bool
) -> None:
    packed, q, v = projection(maker)
    assert v.untyped_storage().nbytes() == packed.nbytes
    alone = attn_backend.without_the_rest(v)
    assert attn_backend.without_the_rest(q) is q
    assert (alone is not v) == copied
    assert torch.equal(alone, v)
    assert alone.untyped_storage().nbytes() == (v.nbytes if copied else packed.nbytes)


@pytest.mark.parametrize("backend", NEEDS)
def test_what_is_kept_for_a_backward_holds_no_larger_buffer(calls: Calls, backend: str) -> None:
    samples = Samples.of((3, 2), "cpu"), Samples.of((3, 2), "cpu")
    _, q, v = projection("split")
    held: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: held.append(one) or one, lambda x: x):
        out = PackedAttention(backend)(q, q, v, *samples)
    assert calls
    assert held
    assert all(one.untyped_storage().nbytes() <= max(one.nbytes, out.nbytes) for one in held)
    calls.clear()
    PackedAttention(backend)(q.detach(), q.detach(), v.detach(), *samples)
    seen = next(seen["v"] for _, seen in calls if "v" in seen)
    assert seen.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()


@pytest.mark.parametrize("backend", NEEDS)
def test_the_autograd_node_tells_the_backend(calls: Calls, backend: str) -> None:
    names = {function_of(one).__name__ for one in NEEDS}
    assert len(names) == len(NEEDS)
    case = AttentionCase((2, 3), (3, 2), "cpu")
    q, kv, _ = case.inputs(0)
    samples = Samples.of((2, 3), "cpu"), Samples.of((3, 2), "cpu")
    out = PackedAttention(backend)(q.requires_grad_(), *kv.unbind(1), *samples)
    assert out.grad_fn is not None
    assert out.grad_fn.name() == f"{function_of(backend).__name__}Backward"


def test_fa3_runs_its_forward_and_fa2s_backward_from_the_log_sum_exp(calls: Calls) -> None:
    compute("fa3", *RAGGED)
    compute("fa3", *EQUAL)
    names = [name for name, _ in calls]
    assert names == ["fa3", "fa2 packed backward", "fa3", "fa2 dense backward"]
    assert all(seen["rng"] is None for name, seen in calls if "backward" in name)


def test_cudnn_runs_packed_samples_one_by_one_and_equal_ones_at_once(calls: Calls) -> None:
    compute("cudnn", *RAGGED)
    assert len(calls) == 3
    compute("cudnn", *EQUAL)
    assert len(calls) == 4


def test_cudnn_refuses_a_single_key(calls: Calls) -> None:
    with pytest.raises(BadParameter, match="one key"):
        compute("cudnn", (3, 2), (4, 1))


def test_packed_calls_get_the_offsets_of_the_given_callable_and_dense_ones_ask_for_none() -> None:
    asked: list[object] = []

    def offsets(layout: Samples) -> Tensor:
        asked.append(layout)
        return layout.cu_seqlens

    ragged, equal = Samples.of((2, 3), "cpu"), Samples.of((4, 4), "cpu")
    cut = cut_of(ragged, equal, offsets)
    assert asked == [ragged, equal]
    assert not cut.dense
    assert cut.cu_q is ragged.cu_seqlens
    assert (cut.longest_q, cut.longest_k) == (3, 4)
    assert cut_of(equal, equal, offsets).dense
    assert len(asked) == 2


def test_a_backend_that_does_not_exist_is_a_mistake() -> None:
    with pytest.raises(UnknownName, match="did you mean"):
        function_of("fa5")


def test_a_cpu_is_refused_since_nothing_may_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadParameter, match="CUDA"):
        refuse("fa4", torch.zeros(1, 2, 64, dtype=torch.bfloat16))


@pytest.mark.parametrize(
    ("backend", "capability", "dtype", "size", "match"),
    [
        ("fa4", (8, 9), torch.bfloat16, 128, "capability"),
        ("fa3", (10, 0), torch.bfloat16, 128, "capability"),
        ("fa2", (7, 5), torch.bfloat16, 128, "capability"),
        ("fa2", (9, 0), torch.float32, 128, "bf16"),
        ("fa2", (9, 0), torch.bfloat16, 36, "multiple of 8"),
    ],
)
def test_what_a_backend_has_no_kernels_for_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    capability: tuple[int, int],
    dtype: torch.dtype,
    size: int,
    match: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    q: Any = SimpleNamespace(device=torch.device("cuda:0"), dtype=dtype, shape=(3, 2, size))
    with pytest.raises(BadParameter, match=match):
        refuse(backend, q)


def test_the_device_is_asked_once_for_each_dtype_and_head_dim(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[torch.dtype, int]] = []
    noted = lambda backend, q: asked.append((q.dtype, q.shape[-1]))  # noqa: E731
    monkeypatch.setattr(attn_backend, "refuse", noted)
    attention, samples = PackedAttention("fa4"), Samples.of((2, 3), "cpu")
    for dtype, size in ((torch.float64, 8), (torch.float64, 8), (torch.float32, 8)):
        rows = torch.ones(5, 2, size, dtype=dtype)
        attention(rows, rows, rows, samples, samples)
    assert asked == [(torch.float64, 8), (torch.float32, 8)]

    def refused(backend: str, q: Tensor) -> None:
        raise BadParameter("no kernels", cure="none")

    monkeypatch.setattr(attn_backend, "refuse", refused)
    for _ in "ab":
        with pytest.raises(BadParameter, match="no kernels"):
            attention(*[torch.ones(5, 2, 16)] * 3, samples, samples)


def test_packages_are_found_by_their_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "flash_attn", raising=False)
    assert "flash-attn 2" in missing_packages("fa2")[0]
    assert len(missing_packages("fa3")) == 2
    assert "no backward of its own" in missing_packages("fa3")[1]
    folder = tmp_path / "flash_attn" / "cute"
    folder.mkdir(parents=True)
    (folder / "interface.py").write_text("raise ImportError('never imported')")
    assert "cutlass" in missing_packages("fa4")[0]
    (tmp_path / "flash_attn" / "flash_attn_interface.py").write_text("raise ImportError")
    (tmp_path / "flash_attn" / "__init__.py").write_text("raise ImportError")
    assert missing_packages("fa2") == ()
    assert missing_packages("cudnn") == missing_packages("torch-flash") == ()
