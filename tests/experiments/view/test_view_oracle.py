"""How the oracle ran, in the provenance of a verdict."""

from __future__ import annotations

from support import records_factory as factory

from experiments.oracle_facts import oracle_ran
from experiments.records import Sample
from experiments.view.verdict import view

SAID = {
    "oracle_mode": "served",
    "oracle_version": "server of m",
    "oracle_graphs": "not said",
    "oracle_package": "p 1",
    "oracle_log": "",
}


def samples() -> tuple[Sample, ...]:
    """The samples of a run, those of the oracle with what it said of itself."""
    found = []
    for sample in factory.default_on().samples:
        hits = 0.25 if sample.pair else 0.0
        said = {**SAID, "oracle_prefix_hits": hits, "oracle_longest_answer": 40}
        arm = "oracle" if sample.arm == "cand" else sample.arm
        found.append(sample.model_copy(update={"arm": arm, "telemetry": said}))
    return tuple(found)


def test_version_graphs_cache_and_lengths_are_said_once_for_all_processes() -> None:
    assert oracle_ran(samples()) == (
        "version server of m; graphs not said; prefix hits 0 to 0.25; longest answer 40"
    )


def test_many_texts_are_counted() -> None:
    texts = [
        sample.model_copy(update={"telemetry": {"oracle_version": f"v{number}"}})
        for number, sample in enumerate(one for one in samples() if one.arm == "oracle")
    ]
    assert oracle_ran(texts[:5]) == "version v0 | v1 | v2 and 2 more"


def test_a_report_has_it_beside_the_name_of_the_oracle_and_nothing_without_one() -> None:
    record = factory.default_on()
    assert "oracle ran" not in dict(view(record).provenance)
    with_oracle = record.model_copy(update={"samples": samples()})
    assert dict(view(with_oracle).provenance)["oracle ran"].startswith("version server of m")
