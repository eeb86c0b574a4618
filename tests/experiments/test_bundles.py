from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import records_factory as factory

import cli
from experiments import bundles, profile_store
from experiments.files import write_atomically
from experiments.home import Home
from experiments.registry.store import Registry
from levers.errors import BadParameter, StoreError, UsageError


@pytest.mark.parametrize("name", factory.ALL)
def test_every_kind_of_run_survives_a_bundle(tmp_path: Path, name: str) -> None:
    record = factory.ALL[name]()
    path = bundles.export(record, tmp_path / "deep" / "run.json")
    loaded = bundles.read_bundle(path)
    assert loaded == record
    assert loaded.content_digest() == record.content_digest()


def test_a_bundle_written_to_a_folder_gets_its_usual_name(tmp_path: Path) -> None:
    path = bundles.export(factory.default_on(), tmp_path)
    assert path.name == "20260304T100000Z-5d3c.levergate.json"


def test_a_bundle_is_taken_in_twice_without_harm(tmp_path: Path) -> None:
    path = bundles.export(factory.default_on(), tmp_path)
    with Registry.open(tmp_path / "registry.db") as registry:
        assert bundles.import_bundle(registry, path)[1] == "stored"
        assert bundles.import_bundle(registry, path)[1] == "unchanged"
        assert registry.count() == 1
        assert registry.default_states()[0].state == "on"


def test_a_profile_travels_with_its_run_and_an_edited_one_is_found(tmp_path: Path) -> None:
    record, here = factory.default_on(), Home(tmp_path / "a", tmp_path / "locks").make()
    there = Home(tmp_path / "b", tmp_path / "locks").make()
    assert profile_store.found(here, record.run_id) is None
    profile_store.keep(here, record.run_id, factory.profile())
    path = bundles.export(record, tmp_path, profile_store.found(here, record.run_id))
    with Registry.open(there.registry) as registry:
        assert bundles.take_in(registry, there, path)[1] == "stored"
        assert profile_store.found(there, record.run_id) == factory.profile()
        plain = bundles.export(record, tmp_path / "plain.json")
        assert bundles.take_in(registry, there, plain)[1] == "unchanged"
    bundle = json.loads(path.read_text())
    bundle["profile"]["step_ms"] /= 2
    path.write_text(json.dumps(bundle))
    with pytest.raises(StoreError, match="its profile was edited"):
        bundles.read_profile(path)


def test_an_edited_figure_is_found(tmp_path: Path) -> None:
    path = bundles.export(factory.default_on(), tmp_path)
    bundle = json.loads(path.read_text())
    bundle["record"]["samples"][0]["values"]["decode/tok_s/c1"] += 1.0
    path.write_text(json.dumps(bundle))
    with pytest.raises(StoreError, match=r"levergate\.json was edited or damaged.*export the run"):
        bundles.read_bundle(path)


def test_an_edited_verdict_with_a_digest_made_anew_must_still_be_legal(tmp_path: Path) -> None:
    path = bundles.export(factory.parity_failed(), tmp_path)
    bundle = json.loads(path.read_text())
    bundle["record"]["decision"] |= {"outcome": "default-ON", "reason": "byte-exact"}
    bundle["digest"] = bundles._digest(bundle["record"])
    path.write_text(json.dumps(bundle))
    with pytest.raises(StoreError, match="record is not legal"):
        bundles.read_bundle(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"# A text", b'{"format": "other"}', b"\0\1", b"\xff\xfe", b"[" * 100_000],
)
def test_what_is_no_bundle_is_a_mistake_of_the_request_and_not_called_damaged(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(BadParameter, match=r"x\.json is no evidence bundle; give a file") as error:
        bundles.read_bundle(path)
    assert "damaged" not in str(error.value)


def test_importing_what_is_no_bundle_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEVERGATE_HOME", str(tmp_path / "home"))
    for name, content in (("README.md", "# A text"), ("x.json", '{"a": 1}')):
        (tmp_path / name).write_text(content)
        assert cli.main(["import", str(tmp_path / name)]) == 2
        assert f"{name} is no evidence bundle" in capsys.readouterr().err


def test_a_bundle_cut_short_is_named(tmp_path: Path) -> None:
    path = bundles.export(factory.default_on(), tmp_path)
    path.write_text(path.read_text()[:-200])
    with pytest.raises(StoreError, match=r"is damaged: it is no JSON.*export the run again"):
        bundles.read_bundle(path)


@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff\xfe\xff", b""])
def test_a_file_with_a_bundles_name_that_cannot_be_read_is_damaged(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / f"x{bundles.SUFFIX}"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="is damaged"):
        bundles.read_bundle(path)


def test_a_byte_that_is_no_text_leaves_a_bundle_damaged(tmp_path: Path) -> None:
    path = bundles.export(factory.default_on(), tmp_path / "x.json")
    path.write_bytes(path.read_bytes()[:-9] + b"\xff" * 9)
    with pytest.raises(StoreError, match="is damaged: it is no JSON"):
        bundles.read_bundle(path)


def test_a_bundle_of_a_newer_version_is_named_with_the_cure(tmp_path: Path) -> None:
    path = bundles.export(factory.default_on(), tmp_path)
    bundle = json.loads(path.read_text())
    path.write_text(json.dumps(bundle | {"schema_version": 99}))
    with pytest.raises(StoreError, match=r"schema version 99.*upgrade levergate"):
        bundles.read_bundle(path)


def test_a_missing_bundle_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the bundle .*none\.json.*; check the path"):
        bundles.read_bundle(tmp_path / "none.json")


def test_a_folder_that_cannot_hold_a_bundle_is_said_without_talk_of_runs() -> None:
    with pytest.raises(StoreError, match="name a file in a folder that is there") as error:
        write_atomically(Path("/proc/levergate.json"), "{}")
    assert "--resume" not in str(error.value)


def test_a_bundle_that_cannot_be_written_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "taken"
    (target / bundles.bundle_name(factory.default_on())).mkdir(parents=True)
    with pytest.raises(StoreError, match="cannot write"):
        bundles.export(factory.default_on(), target)
    assert [path.name for path in target.iterdir()] == [bundles.bundle_name(factory.default_on())]
