from __future__ import annotations

from pathlib import Path

import pytest
from support import records_factory

from experiments.exit_codes import OUTCOMES
from experiments.reasons import ACTIONS, REASON_TEXTS, describe
from experiments.records import REASONS, Decision, Outcome
from experiments.view.facts import calibration
from experiments.view.verdict import TONES, view

CODES = [(outcome, code) for outcome, codes in REASONS.items() for code in codes]
CLOSES = {"byte-exact", "failing-axis-win", "not-worth-keeping"}


def test_the_table_of_texts_is_the_closed_list_of_codes():
    assert set(REASON_TEXTS) == {code for _, code in CODES}
    assert set(ACTIONS) == set(TONES) == set(OUTCOMES) == {outcome.value for outcome in Outcome}


@pytest.mark.parametrize(("outcome", "code"), CODES)
def test_every_reason_is_said_in_a_sentence_and_every_open_one_with_its_cure(outcome, code):
    reason = describe(code)
    assert reason.text.endswith(".")
    assert bool(reason.cure) == (code not in CLOSES)
    assert not reason.cure or reason.cure.endswith(".")


@pytest.mark.parametrize(("outcome", "code"), CODES)
def test_every_reason_reaches_the_reader(outcome, code):
    bare = {"samples": (), "looks": ()} if code == "parity-failed" else {}
    record = records_factory.record(Decision(outcome=outcome, reason=code), **bare)
    shown = view(record)
    assert code in shown.headline
    assert describe(code).text == shown.text
    assert describe(code).cure in shown.cure


def test_an_unknown_code_has_no_words():
    with pytest.raises(KeyError):
        describe("looks-good")


def test_a_machine_that_was_never_calibrated_says_so():
    assert calibration(None) == "not calibrated on this machine and workload"


def test_words_do_not_call_a_clear_effect_a_large_one():
    texts = [reason.text for reason in REASON_TEXTS.values()]
    templates = Path(__file__).parents[2] / "templates"
    texts += [path.read_text() for path in templates.glob("*.j2")]
    assert not [text for text in texts if "significant" in text.lower()]
