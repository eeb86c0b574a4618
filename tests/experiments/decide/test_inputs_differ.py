"""What the refusal of a pair says whose arms did not work on the same inputs."""

from __future__ import annotations

from support.evidence_factory import C1, evidence, sample

from experiments.decide.samples import decide_samples
from experiments.records import Decision
from experiments.values import INPUTS_OVERWRITTEN, LOSS, LOSS_ALLOWANCE
from levers.policy import GatingPolicy, ParityClass, Tolerance

TOLERATED_POLICY = GatingPolicy(
    primaries=(C1,), claims=ParityClass.TOLERATED, tolerance=Tolerance(0.1, "a test")
)


def detail(digest: str, **facts: str) -> str:
    mine = sample(0, "ref", {C1: 1.0}, inputs_digest="clean:31f2 noise:77ab")
    other = sample(0, "cand", {C1: 1.0}, inputs_digest=digest, telemetry=facts)
    found = decide_samples(evidence(samples=(mine, other)))
    assert found is not None
    assert found.reason == "inputs-differ"
    return found.detail


def test_the_part_that_differs_is_named() -> None:
    assert detail("clean:31f2 noise:0000").endswith("worked on different inputs (noise)")


def test_an_arm_that_wrote_into_its_inputs_is_named() -> None:
    said = detail("clean:31f2 noise:0000", **{INPUTS_OVERWRITTEN: "noise"})
    assert said.endswith("(noise; noise overwritten during cand)")


def losses(ref: tuple[float, ...], cand: tuple[float, ...], **changes: object) -> Decision | None:
    facts = {LOSS_ALLOWANCE: 0.002}
    mine = sample(0, "ref", {C1: 1.0}, raw={LOSS: ref}, telemetry=facts)
    other = sample(0, "cand", {C1: 1.0}, raw={LOSS: cand}, telemetry=facts)
    return decide_samples(evidence(samples=(mine, other), **changes))


def test_one_timed_step_of_other_work_ends_the_run_however_the_rest_is() -> None:
    found = losses((2.0, 2.0, 2.0), (2.0, 1.99, 2.0))
    assert found is not None
    assert (found.outcome, found.reason) == ("invalid", "inputs-differ")
    assert "in timed step 2 ref has a loss of 2 and cand of 1.99" in found.detail


def test_losses_as_far_apart_as_rounding_puts_them_are_the_same_work() -> None:
    assert losses((2.0, 2.0), (2.003, 1.997)) is None


def test_a_tolerated_candidate_may_be_ten_times_as_far() -> None:
    rough = TOLERATED_POLICY
    assert losses((2.0,), (1.97,), policy=rough) is None
    found = losses((2.0,), (1.95,), policy=rough)
    assert found is not None
    assert "further apart than 2.0%" in found.detail


def tokens(ref: tuple[float, ...], cand: tuple[float, ...], **changes: object) -> Decision | None:
    mine = sample(0, "ref", {C1: 1.0}, raw={"tokens/c8": ref})
    other = sample(0, "cand", {C1: 1.0}, raw={"tokens/c8": cand})
    return decide_samples(evidence(samples=(mine, other), **changes))


EIGHT = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
OTHERS = tuple(10 * token for token in EIGHT)


def test_nearly_all_streams_of_a_timed_step_elsewhere_are_other_work() -> None:
    found = tokens(EIGHT, OTHERS)
    assert found is not None
    assert (found.outcome, found.reason) == ("invalid", "inputs-differ")
    assert "at c8 8 of 8 streams" in found.detail
    assert tokens(EIGHT * 4, (*EIGHT[:3], *(OTHERS * 4)[3:])) is not None


def test_near_ties_are_no_other_work() -> None:
    assert tokens(EIGHT, (EIGHT[0], *OTHERS[1:])) is None
    assert tokens(EIGHT * 4, (*EIGHT[:4], *(OTHERS * 4)[4:])) is None
    assert tokens(EIGHT[:4], OTHERS[:4]) is None
    assert tokens(EIGHT, OTHERS, policy=TOLERATED_POLICY) is None
