"""The choice of algorithms, the descriptors and the calls, against a library that records them."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments import compilations
from levers.errors import BadParameter
from levers.kernels import cublaslt
from levers.kernels.cublaslt import CublasLt, Devices, operand
from levers.kernels.cublaslt_abi import (
    SIGNATURES,
    SUCCESS,
    Algorithm,
    Choice,
    Epilogue,
    Heuristic,
    Kind,
    Library,
    Operation,
    Preference,
    Refused,
    loaded_library,
    mapped_library,
)
from levers.kernels.cublaslt_plan import Operands, Plan, Problem

NOT_SUPPORTED = 15
STREAM = 77
MAPS = """7f0000000000-7f0001000000 r-xp 00000000 08:01 1   /usr/lib/libc.so.6
7f1000000000-7f1001000000 r--p 00000000 08:01 2   /opt/nvidia/cu13/lib/libcublas.so.13
7f2000000000-7f2001000000 r-xp 00000000 08:01 3   /opt/nvidia/cu13/lib/libcublasLt.so.13
"""


BIAS_POINTER, AUX_POINTER = Operation.BIAS_POINTER, Operation.AUX_POINTER


class Function:
    """One function of the library: keeps its arguments and answers with a status."""

    def __init__(self, name: str, owner: Recorder) -> None:
        self.name, self.owner = name, owner

    def __call__(self, *arguments: Any) -> int:
        self.owner.calls.append((self.name, arguments))
        if self.name.endswith("SetAttribute"):
            return self.owner.set_attribute(*arguments)
        if self.name == "cublasLtMatmulAlgoGetHeuristic":
            return self.owner.propose(*arguments)
        if self.name == "cublasLtMatmul":
            return self.owner.multiply(*arguments)
        return SUCCESS


class Recorder:
    """In place of the library: proposals have a number each, and some of them do not run."""

    def __init__(self, proposals: int = 3, refused: tuple[int, ...] = ()) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.proposals, self.refused = proposals, refused
        self.ran: list[int] = []
        self.attributes: dict[int, int] = {}
        self._functions = {name: Function(name, self) for name in SIGNATURES}

    def __getattr__(self, name: str) -> Any:
        if name == "cublasLtGetVersion":
            return type("Version", (), {"__call__": staticmethod(lambda: 130100)})()
        return self._functions[name]

    def set_attribute(self, target: Any, attribute: int, held: Any, size: int) -> int:
        assert size == ctypes.sizeof(held._obj)
        self.attributes[attribute] = held._obj.value
        return SUCCESS

    def propose(self, *arguments: Any) -> int:
        count, results, number = arguments[7:]
        for index in range(min(count, self.proposals)):
            results[index].algorithm.data[0] = index
            results[index].workspace_bytes = 1024
        number._obj.value = min(count, self.proposals)
        return SUCCESS if self.proposals else NOT_SUPPORTED

    def multiply(self, *arguments: Any) -> int:
        chosen = int(arguments[12]._obj.data[0])
        self.ran.append(chosen)
        return NOT_SUPPORTED if chosen in self.refused else SUCCESS

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for called, arguments in self.calls if called == f"cublasLt{name}"]


class Bench:
    """A device without one: the time of each algorithm is told, not measured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, recorder: Recorder) -> None:
        self.recorder, self.capturing = recorder, False
        self.times_us = {0: 100.0, 1: 90.0, 2: 80.0}
        monkeypatch.setattr(cublaslt, "loaded_library", lambda: Library(recorder))
        monkeypatch.setattr(cublaslt, "device_us", self.clock)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "a device")
        self.current, self.entered = 0, 0
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.current)
        monkeypatch.setattr(torch.cuda, "device", self.device)
        monkeypatch.setattr(cublaslt, "raw_stream", lambda device: STREAM)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        monkeypatch.setattr(CublasLt, "_workspace", lambda self, stream: torch.zeros(1))
        self.lt = CublasLt(0)

    @contextlib.contextmanager
    def device(self, index: int) -> Iterator[None]:
        before, self.current = self.current, index
        self.entered += 1
        try:
            yield
        finally:
            self.current = before

    def clock(self, call: Any) -> float:
        call()
        return self.times_us[self.recorder.ran[-1]]


@pytest.fixture(autouse=True)
def no_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch, Recorder())


def problem(rows: int = 100, epilogue: Epilogue = Epilogue.DEFAULT) -> Problem:
    return Problem(64, rows, 32, True, False, Kind.BF16, Kind.BF16, epilogue, "n")


def operands(bias: bool = False) -> Operands:
    a, b, out = (torch.zeros(1) for _ in "abo")
    extra = (torch.zeros(1), torch.zeros(1)) if bias else (None, None)
    return Operands(a, b, out, *extra)


def test_the_library_is_the_one_that_is_mapped() -> None:
    assert mapped_library(MAPS) == "/opt/nvidia/cu13/lib/libcublasLt.so.13"
    assert mapped_library(MAPS.splitlines()[0]) is None


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch comes with the library")
def test_a_torch_without_cuda_has_none_and_the_error_says_so() -> None:
    with pytest.raises(BadParameter, match="no libcublasLt is loaded"):
        loaded_library()


def test_structures_have_the_sizes_of_the_header() -> None:
    assert ctypes.sizeof(Algorithm) == 64
    assert ctypes.sizeof(Heuristic) == 96
    assert (Heuristic.workspace_bytes.offset, Heuristic.state.offset) == (64, 72)


def test_epilogues_are_the_headers_numbers_and_know_who_has_an_aux() -> None:
    values = {one.name: int(one) for one in Epilogue}
    assert values == {
        "DEFAULT": 1, "BIAS": 4, "GELU_AUX_BIAS": 164, "DGELU": 192, "DGELU_BGRAD": 208,
        "BGRADB": 512,
    }  # fmt: skip
    assert [one.name for one in Epilogue if one.has_aux] == [
        "GELU_AUX_BIAS", "DGELU", "DGELU_BGRAD",
    ]  # fmt: skip


def test_attributes_have_the_headers_numbers_and_sizes() -> None:
    sizes = {one.name: (one.number, ctypes.sizeof(one.stored)) for one in Operation}
    assert sizes == {
        "TRANSA": (3, 4), "TRANSB": (4, 4), "EPILOGUE": (7, 4), "BIAS_POINTER": (8, 8),
        "AUX_POINTER": (11, 8), "AUX_LD": (12, 8),
    }  # fmt: skip
    sizes = {one.name: (one.number, ctypes.sizeof(one.stored)) for one in Preference}
    assert sizes == {"MAX_WORKSPACE_BYTES": (1, 8), "REDUCTION_SCHEME_MASK": (3, 4)}
    sizes = {one.name: (one.number, ctypes.sizeof(one.stored)) for one in Choice}
    assert sizes == {
        "ID": (0, 4), "TILE": (1, 4), "SPLIT_K": (2, 4), "SWIZZLE": (4, 4), "CUSTOM": (5, 4),
        "STAGES": (6, 4), "CLUSTER": (8, 2),
    }  # fmt: skip


def test_a_refusal_names_the_call_the_status_and_the_problem() -> None:
    recorder = Recorder(proposals=0)
    plan = Plan(Library(recorder), problem())
    with pytest.raises(Refused, match=r"Heuristic of 64x100x32 TN .*CUBLAS_STATUS_NOT_SUPPORTED"):
        plan.candidates(ctypes.c_void_p(), 4)


def test_layouts_are_column_major_and_dense_as_they_are_stored() -> None:
    for turned_a, turned_b, a, b in (
        (True, False, (32, 64), (32, 100)),
        (False, False, (64, 32), (32, 100)),
        (False, True, (64, 32), (100, 32)),
    ):
        recorder = Recorder()
        kinds = Kind.BF16, Kind.FP32
        Plan(
            Library(recorder),
            Problem(64, 100, 32, turned_a, turned_b, *kinds, Epilogue.DEFAULT, "n"),
        )
        shapes = [call[1:] for call in recorder.named("MatrixLayoutCreate")]
        assert shapes == [(14, *a, a[0]), (14, *b, b[0]), (0, 64, 100, 64)]
        assert recorder.attributes[Operation.TRANSA.number] == int(turned_a)
        assert recorder.attributes[Operation.TRANSB.number] == int(turned_b)


def test_an_epilogues_pointers_are_set_where_it_has_them() -> None:
    recorder = Recorder()
    plan = Plan(Library(recorder), problem(epilogue=Epilogue.GELU_AUX_BIAS))
    assert recorder.attributes[Operation.EPILOGUE.number] == 164
    assert recorder.attributes[Operation.AUX_LD.number] == 64
    given = operands(bias=True)
    plan.point(given)
    assert given.bias is not None
    assert given.aux is not None
    assert recorder.attributes[Operation.BIAS_POINTER.number] == given.bias.data_ptr()
    assert recorder.attributes[Operation.AUX_POINTER.number] == given.aux.data_ptr()
    plain = Recorder()
    Plan(Library(plain), problem())
    assert Operation.AUX_LD.number not in plain.attributes
    assert Operation.BIAS_POINTER.number not in plain.attributes


def test_descriptors_are_given_back_with_their_plan() -> None:
    recorder = Recorder()
    plan = Plan(Library(recorder), problem())
    del plan
    assert len(recorder.named("MatmulDescDestroy")) == 1
    assert len(recorder.named("MatrixLayoutDestroy")) == 3


def test_the_fastest_of_the_proposals_is_kept_and_later_calls_measure_nothing(
    bench: Bench,
) -> None:
    bench.lt.run(problem(), operands())
    assert bench.recorder.ran[-1] == 2
    tunings, ran = bench.lt.tunings, len(bench.recorder.ran)
    assert tunings == 3
    bench.lt.run(problem(), operands())
    assert (bench.lt.tunings, len(bench.recorder.ran)) == (tunings, ran + 1)
    assert list(bench.lt.winners) == ["64x2048x32 TN bf16 to bf16 default"]


def test_rows_of_one_step_share_the_choice_and_others_are_measured(bench: Bench) -> None:
    for rows in (1, 2048, 1000):
        bench.lt.run(problem(rows), operands())
    assert (bench.lt.tunings, len(bench.lt.winners)) == (3, 1)
    bench.lt.run(problem(2049), operands())
    assert (bench.lt.tunings, len(bench.lt.winners)) == (6, 2)


def test_a_proposal_that_does_not_run_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, Recorder(refused=(2,)))
    bench.lt.run(problem(), operands())
    assert bench.recorder.ran[-1] == 1
    none = Bench(monkeypatch, Recorder(refused=(0, 1, 2)))
    with pytest.raises(Refused, match="cublasLtMatmul of"):
        none.lt.run(problem(), operands())


def test_a_new_problem_inside_a_capture_is_refused_and_a_known_one_runs(bench: Bench) -> None:
    bench.lt.run(problem(100), operands())
    bench.capturing = True
    bench.lt.run(problem(200), operands())
    with pytest.raises(BadParameter, match="a graph is being captured"):
        bench.lt.run(problem(5000), operands())


def test_a_second_process_takes_what_the_first_chose_and_measures_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    first = Bench(monkeypatch, Recorder())
    first.lt.run(problem(), operands())
    second = Bench(monkeypatch, Recorder())
    second.times_us = {0: 1.0, 1: 2.0, 2: 3.0}
    second.lt.run(problem(), operands())
    assert (second.lt.tunings, second.recorder.ran) == (0, [2])
    assert second.lt.winners.keys() == first.lt.winners.keys()


def test_a_call_hands_over_both_scalars_all_operands_and_the_stream(bench: Bench) -> None:
    given = operands()
    bench.lt.run(problem(), given)
    arguments = bench.recorder.named("Matmul")[-1]
    assert (arguments[2]._obj.value, arguments[7]._obj.value) == (1.0, 0.0)
    pointers = [arguments[index] for index in (3, 5, 8, 10)]
    assert pointers == [t.data_ptr() for t in (given.a, given.b, given.out, given.out)]
    assert arguments[15] == STREAM
    assert len(arguments) == len(SIGNATURES["cublasLtMatmul"])


def test_a_device_that_is_not_the_current_one_is_made_so_for_the_call(bench: Bench) -> None:
    bench.lt.run(problem(), operands())
    before = bench.entered
    bench.lt.run(problem(), operands())
    assert bench.entered == before
    bench.current = 1
    bench.lt.run(problem(), operands())
    assert (bench.entered, bench.current) == (before + 1, 1)


def test_a_launch_runs_with_the_bias_of_its_own_call_whatever_other_threads_do(
    bench: Bench,
) -> None:
    shape = problem(epilogue=Epilogue.GELU_AUX_BIAS)
    bench.lt.run(shape, operands(bias=True))
    pointed: list[tuple[int, int, int]] = []
    multiply = bench.recorder.multiply

    def noted(*arguments: Any) -> int:
        attributes = bench.recorder.attributes
        bias, aux = (attributes[one.number] for one in (BIAS_POINTER, AUX_POINTER))
        time.sleep(1e-4)
        pointed.append((arguments[8], bias, aux))
        return multiply(*arguments)

    bench.recorder.multiply = noted  # type: ignore[method-assign]
    given = [operands(bias=True) for _ in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: bench.lt.run(shape, one), given))
    expected = [tuple(t.data_ptr() for t in (one.out, one.bias, one.aux)) for one in given]  # type: ignore[union-attr]
    assert sorted(pointed) == sorted(expected)


def test_an_address_that_the_library_refuses_is_an_error(bench: Bench) -> None:
    shape = problem(epilogue=Epilogue.BIAS)
    bench.lt.run(shape, operands(bias=True))
    bench.recorder.set_attribute = lambda *arguments: 7  # type: ignore[method-assign]
    with pytest.raises(Refused, match=r"BIAS_POINTER .*CUBLAS_STATUS_INVALID_VALUE"):
        bench.lt.run(shape, operands(bias=True))


def test_all_proposals_can_be_seen_with_their_times(bench: Bench) -> None:
    found = bench.lt.measured(problem(), operands(), 2)
    assert [time_us for _, time_us in found] == [100.0, 90.0]
    assert all("tile=" in name and "split_k=" in name for name, _ in found)


def test_the_plans_that_are_kept_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublaslt, "PLANS", 2)
    for rows in (10, 20, 30):
        bench.lt.run(problem(rows), operands())
    assert len(bench.recorder.named("MatmulDescDestroy")) == 1


@pytest.fixture
def aligned() -> Tensor:
    raw = torch.arange(4096, dtype=torch.float32)
    shift = -raw.data_ptr() % 256 // 4
    return raw[shift : shift + 2048].view(32, 64)


def test_operands_are_copied_only_where_they_are_not_dense_or_not_aligned(
    aligned: Tensor,
) -> None:
    assert operand(aligned) is aligned
    for view in (aligned.t(), aligned[:, :32], aligned.view(-1)[1:65].view(8, 8)):
        found = operand(view)
        assert found.is_contiguous()
        assert torch.equal(found, view)
        assert found.data_ptr() != view.data_ptr()


def test_winners_are_facts_and_measurements_count_as_autotuning(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = Devices(lambda index: bench.lt)
    monkeypatch.setattr(cublaslt, "DEVICES", devices)
    assert devices.at(0) is devices.at(0)
    counter = compilations.CompilationCounter()
    before = counter.count()
    devices.at(0).run(problem(), operands())
    assert counter.count() - before == 3
    assert list(compilations.autotune_winners()) == ["cublaslt[64x2048x32 TN bf16 to bf16 default]"]
