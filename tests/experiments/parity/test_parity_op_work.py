"""Whether both arms of an op case do the same work, whatever their functions are called."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments.parity import op, op_work
from experiments.parity.op_case import check_case
from experiments.parity.op_judge import Bar
from experiments.spec import LeverSetting
from experiments.tasks import Task
from levers import catalog
from levers.base import OpCase
from levers.fused_chain import LEVER as FUSED_CHAIN
from levers.qk_norm_rope import LEVER as QK_NORM_ROPE
from tests.support.fake_arms import FakeLever

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

Tensors = tuple[Tensor, ...]
Call = Callable[[Tensors, Tensors], None]
N, K = 12, 8


def linear(inputs: Tensors, outputs: Tensors) -> None:
    outputs[0].copy_(torch.nn.functional.linear(*inputs))


def product(inputs: Tensors, outputs: Tensors) -> None:
    """What ``linear`` comes to, by another name and through a view."""
    x_NK, weight_EK = inputs
    outputs[0].copy_(x_NK.view(N, K) @ weight_EK.transpose(0, 1))


def written(inputs: Tensors, outputs: Tensors) -> None:
    """The same product into its place: a copy less."""
    torch.mm(inputs[0], inputs[1].T, out=outputs[0])


def halves(inputs: Tensors, outputs: Tensors) -> None:
    """The same rows in two products."""
    for rows in (slice(0, N // 2), slice(N // 2, N)):
        outputs[0][rows] = torch.nn.functional.linear(inputs[0][rows], inputs[1])


def work_beside(inputs: Tensors, outputs: Tensors) -> None:
    """The reference's own call, and something that is for nothing."""
    (inputs[0] * 2).sum()
    linear(inputs, outputs)


def by_columns(inputs: Tensors, outputs: Tensors) -> None:
    """The same operators on another layout."""
    x_NK, weight_EK = inputs
    outputs[0].copy_((weight_EK @ x_NK.T).T)


def case(candidate: Call, reference: Call = linear, name: str = "product") -> OpCase:
    def draw(seed: int) -> Tensors:
        generator = torch.Generator().manual_seed(seed)
        return tuple(torch.randn(shape, generator=generator) for shape in ((N, K), (5, K)))

    return OpCase(
        name=name,
        inputs=draw,
        outputs=lambda given: (torch.empty(N, 5),),
        reference=reference,
        candidate=candidate,
        truth=lambda given: (given[0].double() @ given[1].double().T,),
    )


def same(candidate: Call, reference: Call = linear) -> str:
    planted = case(candidate, reference)
    return op_work.same(planted, planted.inputs(1))


class Scaled:
    """A method that is another object at each look."""

    def call(self, inputs: Tensors, outputs: Tensors) -> None:
        linear(inputs, outputs)


SCALED = Scaled()


def with_factor(factor: Any, inputs: Tensors, outputs: Tensors) -> None:
    outputs[0].copy_(torch.nn.functional.linear(*inputs) * factor)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (linear, linear, True),
        (SCALED.call, SCALED.call, True),
        (SCALED.call, Scaled().call, False),
        (functools.partial(with_factor, 1.0), functools.partial(with_factor, 1.0), True),
        (functools.partial(with_factor, 1.0), functools.partial(with_factor, 1), False),
        (functools.partial(with_factor, 1.0), functools.partial(with_factor, 2.0), False),
        (functools.partial(linear), functools.partial(linear), True),
        (linear, product, False),
    ],
)
def test_one_callable_is_known_in_its_forms(one: Call, other: Call, expected: bool) -> None:
    assert op_work.same_callable(one, other) is expected


def test_wrappers_and_views_around_the_same_operators_do_not_tell_two_calls_apart() -> None:
    assert same(linear) == "both arms are one callable"
    said = "both arms do the same work (aten::mm, aten::copy_)"
    assert same(lambda inputs, outputs: linear(inputs, outputs)) == said
    assert same(product) == said


@pytest.mark.parametrize("candidate", [written, halves, work_beside, by_columns])
def test_other_operators_shapes_or_numbers_are_other_work(candidate: Call) -> None:
    assert same(candidate) == ""


def test_an_option_that_an_operator_is_given_tells_two_calls_apart() -> None:
    def rolled(by: int) -> Call:
        def call(inputs: Tensors, outputs: Tensors) -> None:
            outputs[0].copy_(torch.roll(torch.nn.functional.linear(*inputs), by, 0))

        return call

    assert same(rolled(1), rolled(1)) != ""
    assert same(rolled(1), rolled(2)) == ""


def test_work_that_cannot_be_seen_is_taken_to_differ() -> None:
    def by_hand(inputs: Tensors, outputs: Tensors) -> None:
        outputs[0].numpy()[:] = inputs[0].numpy() @ inputs[1].numpy().T

    assert same(lambda inputs, outputs: by_hand(inputs, outputs), by_hand) == ""


@triton.jit  # type: ignore[untyped-decorator]
def scale_kernel(x_ptr: Any, out_ptr: Any, factor: Any, BLOCK: tl.constexpr) -> None:  # type: ignore[name-defined]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at) * factor)


def by_triton(block: int, factor: float) -> Call:
    def call(inputs: Tensors, outputs: Tensors) -> None:
        count = outputs[0].numel()
        scale_kernel[(count // block,)](inputs[0], outputs[0], factor, BLOCK=block)

    return call


def test_launches_of_a_kernel_are_told_apart_by_grid_block_and_numbers() -> None:
    inputs = (torch.randn(16),)

    def planted(candidate: Call) -> OpCase:
        return OpCase(
            name="scale",
            inputs=lambda seed: inputs,
            outputs=lambda given: (torch.empty(16),),
            reference=by_triton(8, 2.0),
            candidate=candidate,
            truth=lambda given: (given[0].double() * 2,),
        )

    assert "do the same work" in op_work.same(planted(by_triton(8, 2.0)), inputs)
    assert op_work.same(planted(by_triton(16, 2.0)), inputs) == ""
    assert op_work.same(planted(by_triton(8, 1.0)), inputs) == ""


# --- in the check -----------------------------------------------------------------------------


def probed(monkeypatch: pytest.MonkeyPatch, *cases: OpCase) -> Any:
    monkeypatch.setattr(catalog, "get", lambda name: FakeLever(cases=lambda setting: cases))
    arguments = {"ref": "off", "tolerance": None, "byte_exact": False, "repeats": 2}
    subject = LeverSetting(lever="planted", setting="on")
    return op.probe(
        Task(
            kind="op",
            arm="cand",
            workload="fake",
            parameters={},
            device="cpu",
            seed=11,
            subject=subject,
            arguments=arguments,
        ),
        None,
    )


def test_a_check_of_only_such_cases_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    found = probed(monkeypatch, case(linear), case(product, name="renamed"))
    assert (found.status, found.total) == ("empty", 0)
    assert found.detail == (
        "nothing is compared in 2 of 2 cases: in product both arms are one callable"
    )


def test_such_a_case_is_not_counted_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    found = probed(monkeypatch, case(written), case(product, name="renamed"))
    assert (found.status, found.passed, found.total) == ("passed", 1, 1)
    assert "1 the same work in both arms, not counted (renamed)" in found.detail


def test_a_wrong_result_is_a_failure_whatever_work_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(inputs: Tensors, outputs: Tensors) -> None:
        linear(inputs, outputs)
        outputs[0][3] = 9.0

    found = probed(monkeypatch, case(wrong), case(linear, name="one"))
    assert (found.status, found.where) == ("failed", "product")


def test_results_that_differ_are_compared_without_a_look_at_the_work() -> None:
    found = check_case(case(halves), 3, Bar())
    assert found.status == "passed"
    assert found.same == ""


def test_the_levers_own_cases_compare_something_where_they_may_run() -> None:
    other = [check_case(one, 0, Bar()) for one in QK_NORM_ROPE.op_cases("on", "cpu")[:6]]
    assert [one.same for one in other] == [""] * len(other)
    plain = [check_case(one, 0, Bar()) for one in FUSED_CHAIN.op_cases("on", "cpu")[:6]]
    assert all(one.same for one in plain)
