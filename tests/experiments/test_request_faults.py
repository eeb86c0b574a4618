"""Small mistakes of a request, each answered before anything is measured."""

from __future__ import annotations

import itertools
import sys
from datetime import datetime
from pathlib import Path

import pytest
from support import records_factory as factory

import cli
from experiments import bundles, candidates, prepare
from experiments.exit_codes import OUTCOMES, expected_outcome
from experiments.family import store as family_store
from experiments.family.records import FamilyRecord
from experiments.home import Home, make_folder
from experiments.preflight import check_budget
from experiments.registry.store import Registry
from experiments.requests import AbRequest
from experiments.spec import DEFAULT_LOOKS
from experiments.tracking import store as tracking_store
from levers import catalog
from levers.errors import BadParameter, StoreError, UsageError


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Home:
    monkeypatch.setenv("LEVERGATE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    return Home(tmp_path, tmp_path / "locks")


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = cli.main([*words])
    out, err = capsys.readouterr()
    return code, " ".join(f"{out} {err}".split())


def test_more_pairs_than_a_run_takes_are_refused_with_the_most_it_takes() -> None:
    with pytest.raises(UsageError, match=rf"--pairs {prepare.MOST_PAIRS} or less.*longer samples"):
        prepare.looks_up_to(99_999)
    assert prepare.looks_up_to(prepare.MOST_PAIRS)[-1] == prepare.MOST_PAIRS


@pytest.mark.parametrize("pairs", [41, 60, 100, 250, 400])
def test_no_look_beyond_the_default_plan_is_far_from_the_one_before(pairs: int) -> None:
    looks = prepare.looks_up_to(pairs)
    assert looks[: len(DEFAULT_LOOKS)] == DEFAULT_LOOKS
    assert looks[-1] == pairs
    assert all(before < after <= before * 1.7 for before, after in itertools.pairwise(looks))


def test_a_budget_that_ends_before_the_first_look_is_refused_with_the_least_one() -> None:
    check_budget(None, 100.0)
    check_budget(18.0, 18.0)
    check_budget(9.0, 18.0)  # an estimate may be twice the truth
    with pytest.raises(BadParameter, match=r"--budget 1s ends before.*18 s.*--budget 18s or more"):
        check_budget(1.0, 18.0)
    with pytest.raises(BadParameter, match=r"--budget 10s ends.*--budget 36s or more"):
        check_budget(5.0, 18.0, share=0.5)


def test_ab_with_a_second_of_budget_is_refused_and_leaves_no_run(home, capsys) -> None:
    code, text = said(capsys, "ab", "segment_sum_broadcast", "--cand", "on", "--budget", "1s")
    assert code == 2
    assert "ends before the first look" in text
    assert not list(home.runs.iterdir())


def test_ab_of_a_lever_with_several_settings_and_no_candidate_lists_them(home, capsys) -> None:
    code, text = said(capsys, "ab", "attn_backend", "--workload", "slat_flow")
    assert code == 2
    assert f"of {catalog.get('attn_backend').settings.describe()}" in text
    assert not list(home.runs.iterdir())


def test_a_candidate_that_is_not_named_is_the_only_setting_beside_off() -> None:
    lever = catalog.get("segment_sum_broadcast")
    assert prepare.settings_of(lever, AbRequest(lever.name)) == ("off", "on")
    assert candidates.settings_of(AbRequest(lever.name), ()) == ("on",)


def test_an_expectation_that_is_no_verdict_lists_all_of_them() -> None:
    with pytest.raises(UsageError) as caught:
        expected_outcome("gated")
    assert all(outcome in str(caught.value) for outcome in OUTCOMES)


@pytest.mark.parametrize("option", ["size", "model"])
def test_an_option_that_the_workload_lacks_is_named_with_the_parameters_it_has(
    home, capsys, option: str
) -> None:
    lever, other = ("fa2_nsplits_cap", "sm_count"), ("segment_sum_broadcast", "depth")
    name, parameter = lever if option == "size" else other
    cand = "auto" if option == "size" else "on"
    code, text = said(capsys, "ab", name, "--cand", cand, f"--{option}", "huge")
    assert code == 2
    assert f"has no --{option}" in text
    assert parameter in text


def test_a_registry_that_is_a_folder_is_named_as_one(tmp_path: Path) -> None:
    (tmp_path / "registry.db").mkdir()
    with pytest.raises(StoreError, match=r"is a folder.*move the folder away"):
        Registry.open(tmp_path / "registry.db")


def test_a_journal_is_no_bundle_and_the_cure_is_to_export(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    journal.write_text('{"kind":"sample","value":{}}\n')
    with pytest.raises(BadParameter, match=r"journal of a run.*levergate export"):
        bundles.read_bundle(journal)


def test_bundles_before_a_bad_one_are_in_and_each_has_its_line(home, capsys, tmp_path) -> None:
    record = factory.default_on()
    good = bundles.export(record, tmp_path)
    bad = tmp_path / "bad.levergate.json"
    bad.write_text("{")
    code, text = said(capsys, "import", str(good), str(bad))
    assert code == 1
    assert f"took in {record.run_id}" in text
    assert "bad.levergate.json is damaged" in text
    with Registry.open(home.registry) as registry:
        assert registry.load(record.run_id) == record


def test_a_run_from_a_bundle_cannot_be_resumed_and_the_message_says_why(
    home, capsys, tmp_path
) -> None:
    record = factory.interrupted()
    home.make()
    with Registry.open(home.registry) as registry:
        registry.save(record)
    code, text = said(capsys, "ab", record.spec.lever, "--resume", record.run_id)
    assert code == 2
    assert "taken in from a bundle" in text
    assert record.environment.host in text


def test_mlflow_that_is_not_installed_is_named_and_not_a_module_of_ours(monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert tracking_store.unreachable("sqlite:////x.db") == (
        "mlflow and tenacity not installed here"
    )


def keep(home: Home, family_id: str) -> None:
    make_folder(family_store.folder(home.make(), family_id))
    record = FamilyRecord(
        family_id=family_id,
        created_at=datetime(2026, 1, 1).isoformat(),
        lever="fa2_nsplits_cap",
        ref="off",
        workload="decode",
        device="cpu",
        seed=1,
        looks=(6,),
        rounds=6,
        axes=(),
        primaries=(),
        settings=(),
        stopped="no setting is left",
    )
    family_store.save(home, record)


def test_a_selection_among_several_settings_is_shown_by_its_id(home, capsys) -> None:
    keep(home, "20260101T000000-abc")
    code, text = said(capsys, "show", "20260101T000000")
    assert code == 0
    assert "fa2_nsplits_cap against off" in text
    assert "selection 20260101T000000-abc" in text
    assert said(capsys, "show", "20260101T000000", "--json")[1].startswith('{"schema_version"')


def test_a_selection_has_no_page_and_no_verdict_to_expect(home, capsys) -> None:
    keep(home, "20260101T000000-abc")
    code, text = said(capsys, "show", "20260101", "--expect", "default-ON")
    assert code == 2
    assert "no verdict" in text
    code, text = said(capsys, "show", "20270101")
    assert "no run '20270101'" in text
    keep(home, "20260101T000000-abd")
    assert "fits 2 stored results" in said(capsys, "show", "20260101")[1]


def test_a_half_made_store_is_removed_where_making_it_fails(tmp_path, monkeypatch) -> None:
    import types

    from experiments.tracking import child as tracking_child

    class Full:
        def __init__(self, tracking_uri: str) -> None:
            Path(tracking_uri.removeprefix("sqlite:///")).write_bytes(b"half")

        def search_experiments(self, max_results: int) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setitem(sys.modules, "mlflow", types.SimpleNamespace(MlflowClient=Full))
    with pytest.raises(OSError, match="No space"):
        tracking_child._make(tmp_path / "mlflow.db")
    assert not list(tmp_path.iterdir())
