"""The products by cuBLASLt on a CUDA device: against fp64, in both levers, in a captured graph."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.parity.op_case import check_case
from experiments.parity.op_judge import Bar
from experiments.values import Scalar
from experiments.workloads.base import DeviceFacts
from experiments.workloads.flow.session import TrainingSession, open_session
from experiments.workloads.flow.workload import SLAT_FLOW
from levers import gemm_epilogue_mlp, tuned_gemm
from levers.base import Lever, OpCase, engaged
from levers.errors import BadParameter
from levers.kernels import cublaslt_products as products
from levers.kernels.cublaslt import DEVICES, CublasLt
from levers.kernels.cublaslt_abi import Epilogue
from levers.kernels.cublaslt_plan import Operands
from levers.kernels.mlp_epilogue import EpilogueMlps, Fusion
from levers.kernels.mlp_epilogue_cases import Dtypes, MlpCase, PublishedMlp

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

LEVERS: list[tuple[Lever, str]] = [
    *((gemm_epilogue_mlp.LEVER, setting) for setting in ("on", "bgrad", "backward", "bgradb")),
    (tuned_gemm.LEVER, "on"),
    (tuned_gemm.LEVER, "narrow"),
    (tuned_gemm.LEVER, "bgradb"),
]
NAMED = [f"{lever.name} {setting}" for lever, setting in LEVERS]
TIMED = [pair for pair in LEVERS if pair[1] not in ("bgrad", "backward")]
"""DGELU_BGRAD is slow on an H200."""

CASES = (
    [
        pytest.param(case, id=f"{lever.name} {setting}: {case.name}")
        for lever, setting in LEVERS
        for case in lever.op_cases(setting, "cuda")
    ]
    if torch.cuda.is_available()
    else []
)
TOKENS, CHANNELS, WIDTH = 19_812, 1536, 8192
BF16, FP32 = torch.bfloat16, torch.float32


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = BF16) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cuda").to(dtype)


def error(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth).norm() / truth.norm())


def session() -> TrainingSession:
    short = {"size": "xl", "depth": "4", "bs": "4", "steps": "7", "warmup": "3"}
    facts = DeviceFacts("cuda", torch.cuda.get_device_name(), 0)
    parameters: Mapping[str, Scalar] = SLAT_FLOW.resolve(short, facts)
    found = open_session(parameters, "cuda:0", 5, "engine")
    assert isinstance(found, TrainingSession)
    return found


def test_the_library_is_found_and_states_its_version() -> None:
    assert DEVICES.at(0).library.version >= 120_000


@pytest.mark.parametrize("rows", [1, 129, 2051, TOKENS])
def test_the_hidden_layer_is_the_tanh_form_of_gelu_with_its_input_beside_it(rows: int) -> None:
    x, weight = drawn(rows, CHANNELS), drawn(WIDTH, CHANNELS, seed=1) / 20
    bias = drawn(WIDTH, seed=2)
    out, h = products.linear_gelu(x, weight, bias, BF16)
    h_true = F.linear(x.double(), weight.double(), bias.double())
    truth = F.gelu(h_true, approximate="tanh")
    assert error(h, h_true) < 2.5e-3
    assert error(out, truth) < 3.5e-3
    erf = F.gelu(h_true)
    assert error(out, truth) < error(out, erf) or rows == 1


@pytest.mark.parametrize("rows", [1, 129, 2051, TOKENS])
def test_the_slope_is_gelus_and_the_biass_sum_is_no_worse_than_one_rounding(rows: int) -> None:
    grad, weight = drawn(rows, CHANNELS) + 1, drawn(CHANNELS, WIDTH, seed=1) / 20
    h = drawn(rows, WIDTH, seed=2)
    dh, sums = products.gelu_grad(grad, weight, h, True)
    dact = grad.double() @ weight.double()
    truth = torch.ops.aten.gelu_backward(dact, h.double(), approximate="tanh")
    assert error(dh, truth) < 2.5e-3
    assert sums.dtype == BF16
    assert error(sums, truth.sum(0)) < 2.5e-3
    alone, none = products.gelu_grad(grad, weight, h, False)
    assert error(alone, truth) < 2.5e-3
    assert none.numel() == 0


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_a_weights_gradient_is_written_in_its_own_dtype(dtype: torch.dtype) -> None:
    grad, x = drawn(TOKENS, 512), drawn(TOKENS, 256, seed=1)
    found = products.weight_grad(grad, x, dtype)
    truth = grad.double().t() @ x.double()
    assert found.dtype == dtype
    assert error(found, truth) < (2.5e-3 if dtype == BF16 else 1e-4)


@pytest.mark.parametrize("case", CASES)
def test_each_case_passes_the_op_check_as_lossless(case: OpCase) -> None:
    found = check_case(case, 0, Bar())
    assert found.status == "passed", found.fault
    assert found.parity.value in ("byte-exact", "lossless"), found.norm_ratio
    assert not found.powerless


def test_the_models_own_rows_are_no_further_from_fp64() -> None:
    case = MlpCase(TOKENS, (CHANNELS, WIDTH), "cuda", Fusion())
    inputs = case.inputs(1)
    truth = case.truth(inputs)
    reference, candidate = case.outputs(inputs), case.outputs(inputs)
    case.reference(inputs, reference)
    case.candidate(inputs, candidate)
    for ours, theirs, true in zip(candidate, reference, truth, strict=True):
        assert error(ours, true) <= max(1.05 * error(theirs, true), 1e-4)


def test_results_repeat_bit_for_bit() -> None:
    case = MlpCase(2051, (CHANNELS, WIDTH), "cuda", Fusion())
    inputs = case.inputs(0)
    first, again = case.outputs(inputs), case.outputs(inputs)
    case.candidate(inputs, first)
    for _ in range(5):
        case.candidate(inputs, again)
        assert all(map(torch.equal, first, again))


def test_a_choice_is_measured_once_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    lt = CublasLt(0)
    x, weight = drawn(777, CHANNELS), drawn(CHANNELS, CHANNELS, seed=1)
    out = torch.empty(777, CHANNELS, dtype=BF16, device="cuda")
    problem = products.linear_problem(x, weight, BF16, Epilogue.DEFAULT)
    for rows in (777, 777, 1500):
        x, out = drawn(rows, CHANNELS), out.new_empty(rows, CHANNELS)
        problem = products.linear_problem(x, weight, BF16, Epilogue.DEFAULT)
        lt.run(problem, Operands(weight, x, out))
        assert error(out, x.double() @ weight.double().t()) < 2.5e-3
    assert len(lt.winners) == 1
    assert "tile=" in next(iter(lt.winners.values()))
    tunings = lt.tunings
    assert tunings >= 1
    lt.run(problem, Operands(weight, x, out))
    assert lt.tunings == tunings


def test_a_choice_that_was_kept_is_taken_by_the_next_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    x, weight = drawn(900, CHANNELS), drawn(CHANNELS, CHANNELS, seed=1)
    problem = products.linear_problem(x, weight, BF16, Epilogue.DEFAULT)
    found, winners = [], []
    for lt in (CublasLt(0), CublasLt(0)):
        out = torch.empty(900, CHANNELS, dtype=BF16, device="cuda")
        lt.run(problem, Operands(weight, x, out))
        found.append(out)
        winners.append(lt.winners)
    assert lt.tunings == 0
    assert winners[0] == winners[1]
    assert torch.equal(*found)


def test_a_refused_problem_says_so_by_name() -> None:
    x = drawn(16, 64, dtype=torch.float16)
    bias = drawn(64, dtype=torch.float16)
    # fp16 operands have no product in bf16
    with pytest.raises(BadParameter, match="CUBLAS_STATUS_"):
        products.linear(x, drawn(64, 64, dtype=torch.float16), bias, BF16)


def test_forward_and_backward_can_be_captured_and_replayed_on_new_rows() -> None:
    mlp = EpilogueMlps(PublishedMlp(Dtypes(BF16, BF16), autocast=False), Fusion())
    rows = drawn(640, CHANNELS).requires_grad_()
    parameters = [
        one.requires_grad_()
        for one in (
            drawn(WIDTH, CHANNELS, seed=1) / 40,
            drawn(WIDTH, seed=2),
            drawn(CHANNELS, WIDTH, seed=3) / 90,
            drawn(CHANNELS, seed=4),
        )
    ]
    grad = drawn(640, CHANNELS, seed=5)

    def both() -> tuple[Tensor, ...]:
        out = mlp(rows, *parameters)
        return (out.detach(), *torch.autograd.grad(out, (rows, *parameters), grad))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        both()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both()
    with torch.no_grad():
        rows.copy_(drawn(640, CHANNELS, seed=9))
    for one in captured:
        one.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert all(map(torch.equal, captured, both()))


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_a_new_problem_inside_a_capture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    x, weight, lt = drawn(64, 96), drawn(4096, 96, seed=1), CublasLt(0)
    problem = products.linear_problem(x, weight, BF16, Epilogue.DEFAULT)
    operands = Operands(weight, x, x.new_empty(64, 4096))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(BadParameter, match="capture"), torch.cuda.graph(graph):
        lt.run(problem, operands)


def test_rows_beyond_two_to_the_31_elements_are_found() -> None:
    rows = 2**31 // WIDTH + 64
    x, weight = torch.zeros(rows, 64, dtype=BF16, device="cuda"), drawn(WIDTH, 64, seed=1)
    bias = drawn(WIDTH, seed=2)
    x[-64:] = drawn(64, 64)
    out, h = products.linear_gelu(x, weight, bias, BF16)
    h_true = F.linear(x[-64:].double(), weight.double(), bias.double())
    assert error(h[-64:], h_true) < 2.5e-3
    assert error(out[-64:], F.gelu(h_true, approximate="tanh")) < 3.5e-3


@functools.cache
def measured(
    lever: Lever, setting: str
) -> tuple[dict[str, str], dict[str, float], dict[str, float]]:
    """The witness, the peak of memory and the median step of the setting and of off."""
    plans, peak, median_ms = {}, {}, {}
    for one_setting in ("off", setting):
        one = session()
        with engaged(lever, one.sites, one_setting):
            one.warm_up()
            values = one.measure().values
            one.exercise()
            plans[one_setting] = lever.witness(one.sites[lever.touches[0]])["train/tok_s"]
        peak[one_setting], median_ms[one_setting] = (
            values["memory/peak_bytes"],
            values["train/step_ms"],
        )
    return plans, peak, median_ms


@pytest.mark.parametrize(("lever", "setting"), LEVERS, ids=NAMED)
def test_the_lever_engages_and_memory_does_not_grow(lever: Lever, setting: str) -> None:
    plans, peak, _ = measured(lever, setting)
    assert plans["off"] != plans[setting]
    assert peak[setting] <= 1.01 * peak["off"]


@pytest.mark.timing
@pytest.mark.parametrize(("lever", "setting"), TIMED, ids=lambda one: getattr(one, "name", one))
def test_a_step_with_the_lever_takes_no_longer(lever: Lever, setting: str) -> None:
    median_ms = measured(lever, setting)[2]
    assert median_ms[setting] < 1.02 * median_ms["off"]


def test_a_compiled_region_takes_the_products_in_without_a_break() -> None:
    case = MlpCase(300, (CHANNELS, WIDTH), "cuda", Fusion())
    *inputs, grad = case.inputs(2)
    leaves = [one.detach().requires_grad_() for one in inputs]
    mlp = EpilogueMlps(case.original, Fusion())
    found = []
    for call in (mlp, torch.compile(mlp, fullgraph=True)):
        with torch.autocast("cuda", dtype=BF16):
            out = call(*leaves)
        found.append((out, *torch.autograd.grad(out, leaves, grad)))
    for eager, compiled in zip(*found, strict=True):
        torch.testing.assert_close(eager, compiled, rtol=2**-7, atol=1e-4)
