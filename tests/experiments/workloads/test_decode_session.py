"""The session on the shipped model: witness, sample, parity outputs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from experiments.values import Scalar
from experiments.workloads.base import DeviceFacts
from experiments.workloads.decode.folder import model_config
from experiments.workloads.decode.names import SPLIT_RULE, SPLIT_RULE_CONTIGUOUS, WEIGHTS
from experiments.workloads.decode.prompts import prompt_set
from experiments.workloads.decode.quality import held_out_nll
from experiments.workloads.decode.session import DecodeSession, open_session
from experiments.workloads.decode.workload import DECODE
from levers.base import engaged
from levers.errors import BadParameter
from levers.fa2_nsplits_cap import LEVER

CPU = DeviceFacts("cpu", "some CPU", 2**34)
SHORT = {
    "prompt_tokens": "96",
    "output_tokens": "24",
    "rounds": "2",
    "round_steps": "12",
    "ttft_repeats": "20",
    "concurrency": "1,3",
}
TRAINED_LOSS_NAT = 3.02
"""``held_out_loss_nat`` of the shipped model's config.json, over more of the same text."""


def parameters(**changes: str) -> Mapping[str, Scalar]:
    return DECODE.resolve({**SHORT, **changes}, CPU)


def session(implementation: str = "engine", **changes: str) -> DecodeSession:
    return open_session(parameters(**changes), "cpu", 1, implementation)


def witness(setting: str) -> dict[str, str]:
    found = open_session(DECODE.resolve({}, CPU), "cpu", 1, "engine")
    with engaged(LEVER, found.sites, setting):
        found.exercise()
    return dict(LEVER.witness(found.sites[SPLIT_RULE]))


@pytest.mark.parametrize(
    ("setting", "splits"), [("off", (7, 4, 3, 3)), ("auto", (6, 3, 1, 1)), ("3", (3, 3, 3, 3))]
)
def test_the_engine_launches_the_published_split_counts(
    setting: str, splits: tuple[int, ...]
) -> None:
    expected = {
        f"decode/tok_s/c{c}": f"num_splits={n}" for c, n in zip((1, 2, 4, 8), splits, strict=True)
    }
    assert witness(setting) == expected


@pytest.mark.parametrize("implementation", ["engine", "oracle:sdpa"])
def test_a_sample_has_every_axis_of_the_workload(implementation: str) -> None:
    found = session(implementation)
    found.warm_up()
    measurement = found.measure()
    assert set(measurement.values) == {axis.name for axis in DECODE.axes(parameters())}
    assert all(value > 0 for value in measurement.values.values())
    assert len(measurement.raw["ttft_ms"]) == 20
    assert len(measurement.raw["gaps_ms/c3"]) == 24
    assert measurement.outputs_count == 24 + 3 * 24 + 20


def test_a_sample_states_each_step_as_a_multiple_of_its_bandwidth_floor() -> None:
    found = session()
    found.warm_up()
    facts = found.measure().facts
    for count in (1, 3):
        assert float(facts[f"decode/floor_ratio/c{count}"] or 0) > 0.1
    assert float(facts["copy_bytes_per_s"] or 0) > 1e8


def test_the_held_out_loss_is_near_that_of_the_training_record_and_repeats() -> None:
    losses = set()
    for _ in range(2):
        found = session(quality="on", prompt_tokens="415", ttft_repeats="20")
        found.warm_up()
        losses.add(found.measure().values["quality/nll"])
    (loss,) = losses
    assert loss == pytest.approx(TRAINED_LOSS_NAT, abs=0.4)


def test_a_damaged_matrix_shows_in_the_held_out_loss() -> None:
    found = session(prompt_tokens="415")
    texts = prompt_set("shipped", model_config("shipped"), 415).apart(2, 415)
    before = held_out_nll(found._engine, texts)
    found.sites[WEIGHTS].launch = lambda name, weight: weight * (0.5 if name == "down" else 1.0)
    assert held_out_nll(found._engine, texts) > before + 0.2


def test_the_contiguous_cache_decodes_the_same_tokens_with_its_own_witness() -> None:
    arguments = {"want": "tokens", "prompts": 4, "concurrency": 3}
    pages, rows = session(), session(kv="contiguous")
    assert pages.outputs(arguments).streams == rows.outputs(arguments).streams
    rows.exercise()
    assert rows.sites[SPLIT_RULE].observations == {}
    assert set(rows.sites[SPLIT_RULE_CONTIGUOUS].observations) == {
        "decode/tok_s/c1",
        "decode/tok_s/c3",
    }


def test_both_implementations_work_on_the_same_inputs() -> None:
    digests = set()
    for implementation in ("engine", "oracle:sdpa"):
        found = session(implementation)
        found.warm_up()
        digests.add(found.measure().inputs_digest)
    assert len(digests) == 1


def test_the_oracle_and_the_engine_decode_the_same_tokens() -> None:
    arguments = {"want": "tokens", "prompts": 4, "concurrency": 3}
    mine, theirs = (session(i).outputs(arguments) for i in ("engine", "oracle:sdpa"))
    assert mine.streams == theirs.streams
    assert mine.inputs_digest == theirs.inputs_digest


def test_tokens_alone_and_under_load_are_the_same_and_fill_the_request() -> None:
    found = session()
    alone = found.outputs({"want": "tokens", "prompts": 6, "concurrency": 1})
    loaded = found.outputs({"want": "tokens", "prompts": 6, "concurrency": 3})
    assert alone.streams == loaded.streams
    assert [stream.prompt for stream in alone.streams] == list(range(6))
    assert max(len(stream.tokens) for stream in alone.streams) <= 24


def test_the_streams_of_the_shipped_model_end_in_both_ways() -> None:
    streams = session().outputs({"want": "tokens", "prompts": 24, "concurrency": 3}).streams
    assert {stream.finish for stream in streams} == {"stop", "length"}


def test_a_gap_can_be_asked_for_a_prefix() -> None:
    found = session()
    streams = found.outputs({"want": "tokens", "prompts": 4}).streams
    stream = max(streams, key=lambda one: len(one.tokens))
    prefix = list(stream.tokens[:3])
    other = (stream.tokens[3] + 1) % 1024
    gaps = found.outputs(
        {
            "want": "gaps",
            "prefixes": [[stream.prompt, prefix, stream.tokens[3]], [stream.prompt, prefix, other]],
        }
    ).gaps
    assert gaps[0] == 0.0
    assert gaps[1] > 0.0


def test_digests_cover_every_concurrency_and_repeat_themselves() -> None:
    first, second = (session().outputs({"want": "digests"}) for _ in range(2))
    assert first.digests == second.digests
    assert {name.split("/")[1] for name in first.digests} == {"c1", "c3"}
    assert set(first.nonfinite.values()) == {0}


def test_an_unknown_output_is_refused() -> None:
    with pytest.raises(BadParameter, match="tokens, truth, gaps or digests"):
        session().outputs({"want": "gradients"})


def test_an_unknown_implementation_is_refused() -> None:
    with pytest.raises(BadParameter, match="use sdpa"):
        session("oracle:other")
