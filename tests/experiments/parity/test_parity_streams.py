"""How answers end that have parted at a near-tie: planted ones, and those of the shipped model."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from experiments.parity import tokens
from experiments.parity.bench import Bench, Execute
from experiments.parity.limits import Limits
from experiments.parity.streams import compare
from experiments.spec import AbSpec
from experiments.tasks import Outputs, Stream, Task, TaskResult
from experiments.values import Scalar
from experiments.workloads.base import DeviceFacts
from experiments.workloads.decode.session import DecodeSession, open_session
from experiments.workloads.decode.workload import DECODE
from levers import catalog
from levers.base import engaged
from levers.lint import SampleFacts
from levers.policy import GatingPolicy, ParityClass
from tests.support.fake_arms import FakeLever, FakeWorkload

STOP = 0
LIMIT = 6
CPU = DeviceFacts("cpu", "some CPU", 2**34)
SHORT = {
    "prompt_tokens": "48",
    "output_tokens": "48",
    "concurrency": "1",
    "quality": "on",
    "rounds": "4",
    "round_steps": "6",
    "ttft_repeats": "20",
    "ttft_tokens": "16",
}


def stream(prompt: int, *ids: int) -> Stream:
    """An answer that ends at its stop token, or else at the limit."""
    stopped = bool(ids) and ids[-1] == STOP
    return Stream(prompt=prompt, tokens=ids, finish="stop" if stopped else "length")


def answers(*streams: Stream) -> Outputs:
    return Outputs(streams=streams, inputs_digest="in")


REFERENCE = answers(stream(0, 5, 6, 7, 8, STOP), stream(1, 5, 6, 7, 8, 9, 4))


def planted(
    candidate: Outputs, gaps: Sequence[float], reference: Outputs = REFERENCE, share: float = 1.0
) -> tuple[Bench, list[Task]]:
    asked: list[Task] = []

    def execute(task: Task) -> TaskResult:
        asked.append(task)
        if task.arguments["want"] == "gaps":
            return TaskResult(outputs=Outputs(gaps=tuple(gaps)))
        return TaskResult(outputs=candidate if task.arm == "cand" else reference)

    policy = GatingPolicy(primaries=("fake/rate",), near_tie_share=share)
    return made(execute, policy, {"concurrency": "1"}), asked


def made(execute: Execute, policy: GatingPolicy, parameters: dict[str, Scalar]) -> Bench:
    spec = AbSpec(
        lever="planted",
        ref="off",
        cand="on",
        workload="fake",
        parameters=parameters,
        device="cpu",
        seed=1,
        policy=policy,
    )
    return Bench(spec, FakeLever(), FakeWorkload(), execute, "cpu", Limits(prompts=16))


def test_an_answer_that_stops_elsewhere_after_a_near_tie_is_held_on_its_own_tokens() -> None:
    candidate = answers(stream(0, 5, 3, STOP), REFERENCE.streams[1])
    bench, asked = planted(candidate, gaps=(0.2, 0.1))
    found = tokens.check(bench)
    assert found.status == "passed"
    assert found.strongest is ParityClass.LOSSLESS
    assert found.figures["stops_elsewhere"] == 1
    assert "1 stop elsewhere after one, 1 where the reference would, too" in found.detail
    assert asked[-1].arguments["prefixes"] == [[0, [5], 3], [0, [5, 3], STOP]]


def test_an_answer_that_stops_where_the_reference_would_go_on_fails() -> None:
    candidate = answers(stream(0, 5, 3, STOP), REFERENCE.streams[1])
    found = tokens.check(planted(candidate, gaps=(0.2, 3.0))[0])
    assert found.status == "failed"
    assert found.worst == "1 answers stop where the reference, on the same tokens, would go on"
    assert found.where == "prompt 0 (alone), token 2, gap 3 nat"


def test_a_stop_that_is_the_near_tie_itself_is_asked_about_once() -> None:
    candidate = answers(stream(0, 5, 6, STOP), REFERENCE.streams[1])
    bench, asked = planted(candidate, gaps=(0.3,))
    assert tokens.check(bench).status == "passed"
    assert asked[-1].arguments["prefixes"] == [[0, [5, 6], STOP]]


def test_an_answer_that_goes_on_to_the_limit_after_a_near_tie_passes() -> None:
    candidate = answers(stream(0, 5, 3, 3, 3, 3, 3), REFERENCE.streams[1])
    assert tokens.check(planted(candidate, gaps=(0.3,))[0]).status == "passed"


def test_an_answer_that_is_cut_before_the_limit_fails_also_after_a_near_tie() -> None:
    candidate = answers(stream(0, 5, 3, 3), REFERENCE.streams[1])
    found = tokens.check(planted(candidate, gaps=(0.3,))[0])
    assert found.status == "failed"
    assert found.worst == "prompt 0 (alone) is cut after 3 tokens, where the limit is 6 at least"


def test_without_a_near_tie_an_answer_must_end_where_the_references_does() -> None:
    candidate = answers(stream(0, 5, 6, 7), REFERENCE.streams[1])
    found = tokens.check(planted(candidate, gaps=())[0])
    assert found.worst == "prompt 0 (alone) ends after 3 tokens, the reference after 5"


def test_more_near_ties_than_allowed_fail_wherever_their_answers_stop() -> None:
    candidate = answers(stream(0, 5, 3, STOP), REFERENCE.streams[1])
    found = tokens.check(planted(candidate, gaps=(0.2, 0.0), share=0.0)[0])
    assert (found.status, found.worst) == ("failed", "1 near-ties where 0 are allowed")


# --- the shipped model ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def session() -> DecodeSession:
    return open_session(DECODE.resolve(SHORT, CPU), "cpu", 1, "engine")


def quantised(session: DecodeSession, arguments: dict[str, object]) -> Outputs:
    with engaged(catalog.get("mxfp4_weights"), session.sites, "on"):
        return session.outputs(arguments)


def shipped(session: DecodeSession, *, cut_short: bool = False) -> Bench:
    """The shipped model against itself in four bits, inside this process."""
    lever = catalog.get("mxfp4_weights")

    def execute(task: Task) -> TaskResult:
        arguments = dict(task.arguments)
        if task.arm == "ref":
            return TaskResult(outputs=session.outputs(arguments))
        found = quantised(session, arguments)
        return TaskResult(outputs=shortened(session, found) if cut_short else found)

    parameters = dict(DECODE.resolve(SHORT, CPU))
    return made(execute, lever.policy(SampleFacts("cpu", "decode", parameters)), parameters)


def shortened(session: DecodeSession, found: Outputs) -> Outputs:
    """The same answers, each long one that has parted stopped three tokens after it did."""
    stop = next(iter(session.outputs({"want": "tokens", "prompts": 1}).streams)).tokens[-1]
    reference = session.outputs({"want": "tokens", "prompts": 16})
    at = {one.prompt: one.position for one in compare("", reference, reference, found).divergences}

    def cut(one: Stream) -> Stream:
        end = at.get(one.prompt, len(one.tokens)) + 3
        if end >= len(one.tokens):
            return one
        return Stream(prompt=one.prompt, tokens=(*one.tokens[:end], stop), finish="stop")

    return found.model_copy(update={"streams": tuple(map(cut, found.streams))})


def test_four_bit_weights_of_a_trained_model_part_at_near_ties_and_pass(
    session: DecodeSession,
) -> None:
    found = tokens.check(shipped(session))
    assert (found.status, found.worst) == ("passed", f"{found.figures['near_ties']} near-ties")
    assert int(str(found.figures["near_ties"])) >= 8
    assert int(str(found.figures["stops_elsewhere"])) >= 6
    assert found.strongest is ParityClass.LOSSLESS


def test_four_bit_weights_that_stop_early_after_a_near_tie_fail(session: DecodeSession) -> None:
    found = tokens.check(shipped(session, cut_short=True))
    assert found.status == "failed"
    assert "stop where the reference, on the same tokens, would go on" in found.worst


def test_the_same_weights_are_strictly_equal(session: DecodeSession) -> None:
    arguments: dict[str, object] = {"want": "tokens", "prompts": 4}
    ref = session.outputs(arguments)
    found = compare("alone", ref, ref, session.outputs(arguments))
    assert (found.divergences, found.endings, found.shorter) == ((), (), ())
