"""What a witness pass notes beside the lever's words: the work that was done on the way."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments import witnessing
from experiments.decide.order import SAME_WORK, decide_effects
from experiments.failure_kinds import kind_of
from experiments.witness_records import WORK
from experiments.workloads.base import DeviceFacts
from experiments.workloads.decode import names
from experiments.workloads.decode.session import DecodeSession, open_session
from experiments.workloads.decode.workload import DECODE
from levers import catalog
from levers.base import engaged
from levers.errors import DefectiveLever
from tests.support.evidence_factory import C1, GUARD, effect, evidence, state, witnesses

CPU = DeviceFacts("cpu", "some CPU", 2**34)
SHORT = {
    "prompt_tokens": "300",
    "output_tokens": "8",
    "rounds": "4",
    "round_steps": "6",
    "ttft_repeats": "20",
    "ttft_tokens": "16",
    "concurrency": "1,8",
}
LEVER = "qk_norm_rope"


@pytest.fixture(scope="module")
def session() -> DecodeSession:
    found = open_session(DECODE.resolve(SHORT, CPU), "cpu", 1, "engine")
    found.warm_up()
    witnessing.subject_pass(found, LEVER)  # what happens at a first pass alone
    return found


class Lying:
    """Says that it ran a kernel, and runs what it found."""

    ran = "triton qk_norm_rope"

    def __init__(self, found: Callable[..., Any]) -> None:
        self._found = found

    def __call__(self, *arguments: Any) -> Any:
        return self._found(*arguments)


def test_a_pass_notes_a_digest_of_its_work_that_repeats(session: DecodeSession) -> None:
    first, second = (witnessing.subject_pass(session, LEVER) for _ in range(2))
    assert first.work == second.work != ""
    assert first.facts[WORK] == first.work
    assert first.plans == second.plans


def test_a_callable_that_lies_about_its_kernel_leaves_the_work_the_same(
    session: DecodeSession,
) -> None:
    plain = witnessing.subject_pass(session, LEVER)
    site = session.sites[names.QK_NORM_ROPE]
    found = site.launch
    site.launch = Lying(found)
    lied = witnessing.subject_pass(session, LEVER)
    site.launch = found
    assert set(lied.plans.values()) == {"triton qk_norm_rope"}
    assert lied.plans != plain.plans
    assert lied.work == plain.work


@pytest.mark.parametrize(("name", "setting"), [(LEVER, "on"), ("fa2_nsplits_cap", "auto")])
def test_a_lever_that_does_something_does_other_work(
    session: DecodeSession, name: str, setting: str
) -> None:
    plain = witnessing.subject_pass(session, name)
    with engaged(catalog.get(name), session.sites, setting):
        changed = witnessing.subject_pass(session, name)
    assert changed.work
    assert changed.work != plain.work


def test_a_witness_that_raises_is_the_levers_fault_in_either_arm(
    session: DecodeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: object) -> None:
        raise KeyError("c1")

    monkeypatch.setattr(type(catalog.get(LEVER)), "witness", cannot)
    with pytest.raises(DefectiveLever, match=f"witness of {LEVER} raised KeyError") as caught:
        witnessing.subject_pass(session, LEVER)
    assert kind_of(caught.value) == "lever-defective"


def test_the_same_work_in_both_arms_is_said_beside_the_verdict() -> None:
    pair = witnesses()
    same = tuple(one.model_copy(update={"facts": {WORK: "abc"}}) for one in pair)
    other = (same[0], pair[1].model_copy(update={"facts": {WORK: "abd"}}))
    notes = {}
    for label, seen in (("same", same), ("other", other), ("unseen", pair)):
        won = evidence(
            [effect(C1, (5, 4, 6)), effect(GUARD, (0, -0.5, 0.5))], [state(C1, "failing")]
        )
        decision = decide_effects(dataclasses.replace(won, witnesses=seen))
        assert decision is not None
        notes[label] = SAME_WORK in decision.notes
    assert notes == {"same": True, "other": False, "unseen": False}


def test_where_torch_is_not_at_work_nothing_is_seen_and_torch_is_not_loaded() -> None:
    program = (
        "import sys\n"
        "from types import SimpleNamespace as N\n"
        "from experiments import witnessing\n"
        "session = N(sites={}, exercise=lambda: None)\n"
        "found = witnessing.subject_pass(session, None)\n"
        "assert found.work == '' and found.facts == {}, found\n"
        "assert 'torch' not in sys.modules\n"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", program], check=True, cwd=root)
