"""The token check with other models than the timed one: each judged by itself, all in one check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.parity import stack, tokens
from experiments.parity.bench import Bench, ProcessFailed
from experiments.parity.cache import ParityCache
from experiments.parity.limits import GPU_ALONE_TOKENS, Limits
from experiments.parity.token_modes import modes
from experiments.spec import AbSpec, LeverSetting, TokenModel
from experiments.tasks import Outputs, Task, TaskResult
from levers.policy import ParityClass
from tests.support.fake_arms import PLAIN, FakeArms, FakeLever, FakeWorkload, Plant, spec, streams

FOUR_BITS = LeverSetting(lever="bits", setting="on")
GRAPH = LeverSetting(lever="graph", setting="on")


def model(name: str, *levers: LeverSetting, digest: str = "", **more: Any) -> TokenModel:
    own = {"concurrency": "1,4", "model": name, "model_digest": digest or f"d-{name}", **more}
    return TokenModel(parameters=own, levers=levers)


MODELS = (model("shipped"), model("/models/trained"), model("shipped", FOUR_BITS))


def asked(*models: TokenModel, **changes: Any) -> AbSpec:
    own = {"model": "random-0.6b", "concurrency": "1,4"}
    found = spec(parameters=own, **changes)
    return found.model_copy(update={"tokens_on": models or MODELS})


def bench(of: AbSpec, arms: FakeArms | None = None) -> Bench:
    return Bench(of, FakeLever(), FakeWorkload(), arms or FakeArms(), of.device_type, Limits())


def parting(of: str, *prompts: int, gap: float = 0.2, bits: bool = False) -> Plant:
    """Candidate streams that part at their third token on one model."""
    answers = [[i, 7, 99 if i in prompts else 8, 9] for i in range(8)]

    def plant(task: Task) -> Outputs | None:
        if task.arguments.get("want") == "gaps":
            return Outputs(gaps=tuple(gap for _ in task.arguments["prefixes"]))
        here = task.parameters["model"] == of and (FOUR_BITS in task.levers) == bits
        if here and task.arm == "cand":
            return PLAIN.model_copy(update={"streams": streams(*answers)})
        return None

    return plant


def test_every_model_decodes_alone_and_loaded_and_the_counts_are_of_all() -> None:
    arms = FakeArms()
    found = tokens.check(bench(asked(), arms))
    assert (found.status, found.passed, found.total) == ("passed", 48, 48)
    assert found.strongest is ParityClass.BYTE_EXACT
    assert found.figures["streams"] == 48
    assert found.figures["streams_equal of trained"] == 16
    assert "shipped: 16/16 streams equal" in found.detail
    assert "trained: 16/16" in found.detail
    assert "shipped with bits=on: 16/16" in found.detail
    seen = {(task.parameters["model"], FOUR_BITS in task.levers) for task in arms.asked}
    assert seen == {("shipped", False), ("/models/trained", False), ("shipped", True)}


def test_the_timed_model_is_not_decoded_beside_them() -> None:
    assert tokens.no_claim(bench(asked())) == ""
    assert "random weights" in tokens.no_own_claim(bench(asked()))
    assert all(task.parameters["model"] != "random-0.6b" for task in tokens.ahead(bench(asked())))


def test_levers_of_a_model_are_on_in_both_arms_and_the_reference_is_the_quantised_one() -> None:
    made = bench(asked(MODELS[2]))
    assert {task.kind for task in tokens.ahead(made)} == {"witness", "outputs"}
    for task in tokens.ahead(made):
        off = LeverSetting(lever="planted", setting="off" if task.arm == "ref" else "on")
        assert task.levers == (FOUR_BITS, off)


def test_a_lever_that_is_on_anyway_is_not_doubled_and_its_processes_serve_both_checks() -> None:
    of = asked(model("shipped", GRAPH), stack=(GRAPH,))
    ahead = [task for task in tokens.ahead(bench(of)) if task.kind == "outputs"]
    alone = {task.content_digest() for task in ahead}
    decoded = (task for task in stack.ahead(bench(of)) if task.arguments["want"] == "tokens")
    assert {task.content_digest() for task in decoded} == alone


@pytest.mark.parametrize("of", [asked(), asked(claims=ParityClass.BYTE_EXACT)])
def test_all_processes_are_known_beforehand(of: AbSpec) -> None:
    arms = FakeArms()
    made = bench(of, arms)
    ahead = [task.content_digest() for task in tokens.ahead(made)]
    tokens.check(made)
    assert [task.content_digest() for task in arms.asked] == ahead
    assert len(set(ahead)) == len(ahead) == 3 * 2 + 3 * 2 * 3


def test_a_model_on_which_both_arms_run_the_same_plan_is_left_out_and_said() -> None:
    def seen(task: Task) -> dict[str, str]:
        same = task.parameters["model"] == "/models/trained"
        return {"rate": "one" if same else task.arm}

    arms = FakeArms(plans=seen)
    found = tokens.check(bench(asked(), arms))
    assert (found.status, found.passed, found.total) == ("passed", 32, 32)
    assert "both arms run the same plan with trained: left out" in found.detail
    assert "streams_equal of trained" not in found.figures
    decoded = {task.parameters["model"] for task in arms.asked if task.kind == "outputs"}
    assert decoded == {"shipped"}


def test_a_load_is_one_at_which_the_lever_does_something() -> None:
    plans = {
        "shipped": {"cand": {"rate/c1": "a", "rate/c2": "b", "rate/c4": "a"}},
        "/models/trained": {"cand": {"rate/c1": "b", "rate/c2": "a", "rate/c4": "a"}},
    }

    def seen(task: Task) -> dict[str, str]:
        plain = {"rate/c1": "a", "rate/c2": "a", "rate/c4": "a"}
        return plans[str(task.parameters["model"])].get(task.arm, plain)

    arms = FakeArms(plans=seen)
    assert tokens.check(bench(asked(*MODELS[:2]), arms)).status == "passed"
    counts: dict[str, set[int]] = {}
    for task in arms.asked:
        if task.kind == "outputs":
            model = str(task.parameters["model"])
            counts.setdefault(model, set()).add(task.arguments["concurrency"])
    assert counts == {"shipped": {1, 2}, "/models/trained": {1, 4}}


def test_a_stream_alone_is_shorter_only_where_longer_ones_show_the_lever_under_load() -> None:
    under_load = {"rate/c1": "b", "rate/c4": "b"}
    acting = {"shipped": under_load, "/models/trained": {"rate/c1": "b", "rate/c4": "a"}}

    def seen(task: Task) -> dict[str, str]:
        same = {"rate/c1": "a", "rate/c4": "a"}
        return acting[str(task.parameters["model"])] if task.arm == "cand" else same

    arms, limits = FakeArms(plans=seen), Limits(alone_tokens=32)
    of = asked(*MODELS[:2])
    made = Bench(of, FakeLever(), FakeWorkload(), arms, of.device_type, limits)
    found = tokens.check(made)
    assert "streams alone have 32 tokens" in found.detail
    lengths = {
        (task.parameters["model"], task.arguments["concurrency"]): task.arguments.get("max_tokens")
        for task in arms.asked
        if task.kind == "outputs"
    }
    assert lengths == {
        ("shipped", 1): 32,
        ("shipped", 4): None,
        ("/models/trained", 1): None,
        ("/models/trained", 4): None,
    }
    alone = model("shipped", concurrency="1")
    made = Bench(asked(alone), FakeLever(), FakeWorkload(), arms, of.device_type, limits)
    assert [mode.arguments.get("max_tokens") for mode in modes(made)] == [None]
    assert Limits.usual("cpu").alone_tokens is None
    assert Limits.usual("cuda").alone_tokens == GPU_ALONE_TOKENS


def test_a_lever_that_does_nothing_on_any_model_compared_nothing() -> None:
    arms = FakeArms(plans=lambda task: {"rate": "one"})
    found = tokens.check(bench(asked(), arms))
    assert found.status == "empty"
    assert "both arms run the same plan with shipped, trained, shipped with bits=on" in found.detail
    assert {task.kind for task in arms.asked} == {"witness"}


def test_a_near_tie_names_the_model() -> None:
    of = asked(near_tie_share=0.125)
    found = tokens.check(bench(of, FakeArms(parting("/models/trained", 3))))
    assert (found.status, found.strongest) == ("passed", ParityClass.LOSSLESS)
    assert found.where == "prompt 3 (trained, alone), token 2, gap 0.2 nat"
    assert found.worst == "2 near-ties"
    assert found.figures["worst_gap_nat"] == 0.2


def test_equal_streams_of_one_model_do_not_make_up_for_another_ones_near_ties() -> None:
    plant = parting("shipped", 1, 3, bits=True)
    of = asked(near_tie_share=0.125)  # six over all streams, two of each model's
    found = tokens.check(bench(of, FakeArms(plant)))
    assert found.status == "failed"
    assert found.worst == "shipped with bits=on: 4 near-ties where 2 are allowed"
    assert (found.passed, found.total) == (44, 48)
    assert "trained: 16/16 streams equal" in found.detail


def test_strict_is_strict_on_every_model() -> None:
    plant = parting("/models/trained", 2, gap=0.01)
    found = tokens.check(bench(asked(strict_tokens=True), FakeArms(plant)))
    assert found.worst == "trained: 14 of 16 streams equal, all must be"


def test_a_model_on_which_nothing_was_decoded_makes_the_check_empty() -> None:
    def silent(task: Task) -> Outputs | None:
        there = task.parameters["model"] == "/models/trained"
        return PLAIN.model_copy(update={"streams": ()}) if there else None

    found = tokens.check(bench(asked(), FakeArms(silent)))
    assert found.status == "empty"
    assert "trained, alone: the reference produced no token" in f"{found.worst}{found.detail}"


def test_a_process_that_fails_says_with_which_model() -> None:
    def fails(task: Task) -> TaskResult | None:
        there = task.parameters["model"] == "/models/trained" and task.arm == "cand"
        there = there and task.kind == "outputs"
        return TaskResult(failure="crashed", message="no kernel") if there else None

    with pytest.raises(ProcessFailed) as raised:
        tokens.check(bench(asked(), FakeArms(fails=fails)))
    (failure,) = raised.value.failures
    assert (failure.arm, failure.message) == ("cand", "trained, alone: no kernel")


def test_a_result_is_kept_for_these_weights_and_the_other_checks_for_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ParityCache, "_source", lambda _, lever: lever)
    cache = ParityCache(tmp_path, "stack")
    none = asked().model_copy(update={"tokens_on": ()})
    others = (none, asked(), asked(model("shipped", digest="new")), asked(model("shipped")))
    for check in ("tokens", "stack", "whole-stack"):
        assert len({cache.key(check, one) for one in others}) == 4
    for check in ("op", "determinism", "smoke", "rollback"):
        assert len({cache.key(check, one) for one in others}) == 1
