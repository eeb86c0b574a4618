"""Whether a gain follows the launches that a lever takes over."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

import cli
from experiments import bundles, dose
from experiments.dose import Dose
from experiments.registry.store import Registry
from experiments.run_record import RunRecord
from experiments.stack.stats import analysed
from experiments.stack.view import view as stack_view
from tests.support import stack_factory

FLOW = Path(__file__).parents[2] / "docs/results/h200/segment_sum_broadcast-slat_flow-xl.json"


@pytest.fixture(scope="module")
def full() -> RunRecord:
    return bundles.read_bundle(FLOW)


def less(full: Dose, saved_share: float, launches: int | None = 36, **parameters: int) -> Dose:
    """A dose of 36 launches, whose reference takes 1 s and which saves a share of the full one."""
    estimate = -math.log1p(-saved_share * full.saved[0] / 1000.0)
    effect = full.effect.model_copy(
        update={"estimate": estimate, "lower": estimate - 0.004, "upper": estimate + 0.004}
    )
    mine = {**full.parameters, "steps": 3, "frozen": 24, **parameters}
    return dataclasses.replace(
        full, source="z", parameters=mine, launches=launches, seconds=1000.0, effect=effect
    )


def one(record: RunRecord) -> Dose:
    (found,) = dose.of_run(record)
    return found


def test_a_run_gives_its_launches_and_the_time_it_saves(full: RunRecord) -> None:
    found = one(full)
    assert (found.launches, found.unit) == (180, "ms")
    assert found.seconds == pytest.approx(1817, abs=1)
    assert found.saved[0] == pytest.approx(1817 - 807.5, abs=2)
    assert found.saved[1] < found.saved[0] < found.saved[2]
    assert not list(dose.of_run(full.model_copy(update={"status": "running"})))


def test_a_gain_that_falls_with_its_launches_is_said_to(full: RunRecord) -> None:
    ((of, (said,)),) = dose.readings([one(full), less(one(full), 0.2)], "frozen")
    assert of.startswith("segment_sum_broadcast=on slat_flow NVIDIA H200")
    assert said.follows
    assert said.conclusion == "falls as the launches do"
    assert "frozen=24 against 0: 36 of 180 launches (20" in said.text
    assert "+125.0 % [124.6, 125.4] with all of them" in said.text


@pytest.mark.parametrize("share", [0.05, 0.4])
def test_one_that_falls_by_another_measure_is_not(full: RunRecord, share: float) -> None:
    ((_, (said,)),) = dose.readings([one(full), less(one(full), share)], "frozen")
    assert (said.follows, said.conclusion) == (False, "falls, and not as the launches do")


def test_one_that_stays_is_not_the_levers(full: RunRecord) -> None:
    ((_, (said,)),) = dose.readings([one(full), less(one(full), 0.6)], "frozen")
    assert (said.follows, said.conclusion) == (False, "is not proven to fall")


def test_without_counted_launches_nothing_is_said(full: RunRecord) -> None:
    ((_, (said,)),) = dose.readings([one(full), less(one(full), 0.2, None)], "frozen")
    assert (said.follows, said.conclusion) == (False, "cannot be said")


def test_a_stack_tells_what_each_lever_takes_over() -> None:
    record = stack_factory.record(stack_factory.spec(6), stack_factory.adding(a=0.2, b=0.1, c=0.0))
    plans = {f"a: {stack_factory.RATE.name}": "backward=Index x 36"}
    plans |= {f"b: {stack_factory.RATE.name}": "; ".join(f"backward=Long{k} x 2" for k in range(9))}
    evidence = tuple(one.model_copy(update={"plans": plans}) for one in record.evidence)
    filled = record.model_copy(update={"evidence": evidence})
    said = ("a=on: backward=Index x 36", "b=on: 18 launches")
    assert dose.taken_over(filled) == said
    assert [text for name, text in stack_view(filled).facts if name == "takes over"] == [*said]
    analysed_ = filled.model_copy(update={"analysis": analysed(filled), "status": "measured"})
    first, *_ = dose.of_stack(analysed_)
    assert (first.launches, first.unit) == (36, "ms")
    assert first.effect.estimate == pytest.approx(0.2, abs=0.05)


def test_what_gains_nothing_cannot_fall(full: RunRecord) -> None:
    base = one(full)
    effect = base.effect.model_copy(update={"estimate": 0.01, "lower": -0.1, "upper": 0.2})
    none = dataclasses.replace(base, effect=effect)
    ((_, (said,)),) = dose.readings([none, less(base, 0.2)], "frozen")
    assert (said.follows, said.conclusion) == (False, "cannot be said")
    assert "no gain is proven at all" in said.text


def test_only_gains_of_the_same_work_are_compared(full: RunRecord) -> None:
    base = one(full)
    other = dataclasses.replace(less(base, 0.2), key=(*base.key, "fused_modulate=on"))
    assert dose.readings([base, less(base, 0.2, bs=2), other, base], "frozen") == []


def test_the_command_reads_what_is_stored_and_gates(
    full: RunRecord,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LEVERGATE_HOME", str(tmp_path))
    words = ["history", "segment_sum_broadcast", "--over", "frozen"]
    assert cli.main(words) == 2
    assert "no two stored gains" in capsys.readouterr().err
    assert cli.main(["history", "--over", "frozen"]) == 2
    with Registry.open(tmp_path / "registry.db") as registry:
        registry.save(full)
        assert cli.main([*words[:-1], "frosen"]) == 2
        assert "did you mean 'frozen'?" in capsys.readouterr().err
        registry.save(_with_frozen(full))
    assert cli.main(words) == 5
    assert "the gain is not proven to fall" in capsys.readouterr().out
    assert cli.main([*words, "--json"]) == 5
    answer = json.loads(capsys.readouterr().out)
    assert answer["series"][0]["readings"][0]["follows"] is False


def _with_frozen(full: RunRecord) -> RunRecord:
    """The same figures under another parameter: a gain that does not fall."""
    parameters = {**full.spec.parameters, "frozen": 24}
    spec = full.spec.model_copy(update={"parameters": parameters})
    plans = dict.fromkeys(full.witnesses[0].plans, "backward=Index x 36")
    witness = full.witnesses[0].model_copy(update={"plans": plans})
    changes = {"run_id": "20261130T000000-000000", "spec": spec}
    return full.model_copy(update={**changes, "witnesses": (witness, full.witnesses[1])})
