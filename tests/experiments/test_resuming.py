"""What is typed beside ``--resume``: the same again is let through, anything else is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from experiments import resuming
from experiments.calibration.requests import CalibrateRequest
from experiments.requests import AbRequest
from experiments.run_record import RunRecord
from experiments.spec import LeverSetting, TokenModel
from experiments.stack.records import StackRecord
from experiments.stack.requests import StackRequest
from experiments.workloads.base import DeviceFacts
from experiments.workloads.decode.workload import DECODE
from levers.errors import UnknownName, UsageError
from tests.support import records_factory, stack_factory

CPU = DeviceFacts("cpu", "some CPU", 2**34)


def run(**spec: Any) -> RunRecord:
    whole = records_factory.default_on()
    parameters = DECODE.resolve({"concurrency": "1,2", "prompt_tokens": "96"}, CPU)
    changed = whole.spec.model_copy(update={"parameters": parameters, **spec})
    return whole.model_copy(update={"spec": changed})


def asked(**options: Any) -> AbRequest:
    return AbRequest(lever="fa2_nsplits_cap", resume=run().run_id, **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seed": 9}, "--seed 7, not 9"),
        ({"oracle": "none"}, "--oracle sdpa, not none"),
        ({"oracle": "transformers"}, "--oracle sdpa, not transformers"),
        ({"settings": {"prompt_tokens": "128"}}, "--set prompt_tokens 96, not 128"),
        ({"settings": {"concurrency": "1,2,4"}}, "--set concurrency 1,2, not 1,2,4"),
        ({"cand": "2"}, "--cand auto, not 2"),
        ({"ref": "3"}, "--ref off, not 3"),
        ({"workload": "slat_flow"}, "--workload decode, not slat_flow"),
        ({"ranks": 2}, "--ranks 1, not 2"),
        ({"budget_s": 60.0}, "--budget none, not 60s"),
        ({"beside": ("fused_chain=on",)}, "--with none, not fused_chain=on"),
        ({"tokens_on": ("shipped",)}, "--tokens-on none, not shipped"),
        ({"sequential": "anytime"}, "--sequential group-sequential, not anytime"),
    ],
)
def test_what_could_only_be_ignored_is_refused_with_a_cure(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError) as refused:
        resuming.refuse_other_run(asked(**options), run())
    assert refused.value.message == f"run {run().run_id} has {said}"
    assert refused.value.cure.startswith(
        f"levergate ab fa2_nsplits_cap --resume {run().run_id} goes on with its own"
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cand": "auto", "seed": 7, "oracle": "sdpa", "workload": "decode"},
        {"settings": {"concurrency": "1, 2", "prompt_tokens": "96"}},
        {"ref": "off", "ranks": 1, "sequential": "group-sequential"},
    ],
)
def test_what_is_typed_as_it_was_the_first_time_is_let_through(options: dict[str, Any]) -> None:
    resuming.refuse_other_run(asked(**options), run())


def test_a_run_does_not_go_on_where_another_device_is_asked_for() -> None:
    resuming.refuse_other_run(asked(device="cpu"), run(device="cpu"))
    with pytest.raises(UsageError, match="has --device cuda:1, not cpu"):
        resuming.refuse_other_run(asked(device="cpu"), run(device="cuda:1"))
    with pytest.raises(UsageError, match="no device 'cuda:77'"):
        resuming.refuse_other_run(asked(device="cuda:77"), run(device="cpu"))


def test_levers_that_are_on_in_both_arms_may_be_named_again() -> None:
    stack = (LeverSetting(lever="fused_chain", setting="on"),)
    resuming.refuse_other_run(asked(beside=("fused_chain=on",)), run(stack=stack))


def test_the_models_of_the_tokens_are_those_that_it_began_with_in_any_order() -> None:
    four_bits = LeverSetting(lever="mxfp4_weights", setting="on")
    own = {"model": "shipped", "model_digest": "3f9c"}
    models = (TokenModel(parameters=own), TokenModel(parameters=own, levers=(four_bits,)))
    with_both = run(tokens_on=models)
    resuming.refuse_other_run(asked(tokens_on=()), with_both)
    resuming.refuse_other_run(asked(tokens_on=("shipped, mxfp4_weights", "shipped")), with_both)
    said = "has --tokens-on shipped shipped,mxfp4_weights=on, not shipped"
    with pytest.raises(UsageError, match=said):
        resuming.refuse_other_run(asked(tokens_on=("shipped",)), with_both)


def test_a_run_without_an_oracle_is_not_given_one() -> None:
    with pytest.raises(UsageError, match="has --oracle none, not sdpa"):
        resuming.refuse_other_run(asked(oracle="sdpa"), run(oracle=None))
    resuming.refuse_other_run(asked(oracle="none"), run(oracle=None))


def test_a_budget_beside_more_pairs_belongs_to_the_extension() -> None:
    resuming.refuse_other_run(asked(max_pairs=50, budget_s=60.0), run())


def test_a_parameter_that_the_workload_does_not_have_is_named() -> None:
    with pytest.raises(UnknownName, match="promt_tokens"):
        resuming.refuse_other_run(asked(settings={"promt_tokens": "96"}), run())


def test_a_parameter_is_read_beside_the_runs_own_model() -> None:
    with pytest.raises(UsageError, match="has --model shipped, not random"):
        resuming.refuse_other_run(asked(settings={"model": "random-0.6b"}), run())


def begun(**spec: Any) -> StackRecord:
    whole = stack_factory.record(stack_factory.spec(), lambda names: 0.1 * len(names))
    named = (LeverSetting(lever="fused_chain", setting="on"),)
    parameters = DECODE.resolve({"concurrency": "1,2"}, CPU)
    own = {"workload": "decode", "parameters": parameters, "levers": named, **spec}
    return whole.model_copy(update={"spec": whole.spec.model_copy(update=own)})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"workload": "slat_flow"}, "WORKLOAD decode, not slat_flow"),
        ({"levers": ("cuda_graph=on",)}, "--levers fused_chain=on, not cuda_graph=on"),
        ({"seed": 4}, "--seed 3, not 4"),
        ({"oracle": "sdpa"}, "--oracle none, not sdpa"),
        ({"blocks": 8}, "--blocks 6, not 8"),
        ({"tokens_on": ("shipped",)}, "--tokens-on none, not shipped"),
        ({"ranks": 2}, "--ranks 1, not 2"),
        ({"leave_one_out": False}, "--leave-one-out yes, not --no-leave-one-out"),
        ({"pairs": False}, "--pairs yes, not --no-pairs"),
        ({"budget_s": 60.0}, "--budget none, not 60s"),
        ({"settings": {"concurrency": "1"}}, "--set concurrency 1,2, not 1"),
    ],
)
def test_a_stack_refuses_what_it_was_not_begun_with(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        resuming.refuse_other_stack(StackRequest(**{"workload": "", **options}), begun())
    assert refused.value.message == f"stack {begun().stack_id} has {said}"
    assert f"stack --resume {begun().stack_id} goes on" in refused.value.cure


def test_a_stack_lets_through_what_is_typed_as_it_was_the_first_time() -> None:
    again = StackRequest(
        workload="decode",
        levers=("fused_chain=on",),
        device="cpu",
        settings={"concurrency": "1, 2"},
        seed=3,
        oracle="none",
    )
    resuming.refuse_other_stack(again, begun())
    fewer = begun(left_out=(), overlaps=(), blocks=8)
    resuming.refuse_other_stack(replace(again, leave_one_out=False, pairs=False, blocks=8), fewer)


def test_a_calibration_keeps_its_device_and_its_pairs() -> None:
    record = run(device="cuda:1", looks=(44,))
    resuming.refuse_other_calibration(CalibrateRequest(pairs=42), record)
    for other, said in (
        (CalibrateRequest(pairs=60), "--pairs 44, not 60"),
        (CalibrateRequest(device="cpu"), "--device cuda:1, not cpu"),
    ):
        with pytest.raises(UsageError, match=f"has {said}"):
            resuming.refuse_other_calibration(other, record)
