from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from support import records_factory as factory

from experiments.defaults import Current, Override
from experiments.evidence import Scope
from experiments.registry.marks import MirrorNote
from experiments.registry.store import Registry
from experiments.run_record import RunRecord
from levers.errors import StoreError, UnknownName, UsageError

AT = "2026-03-09T10:00:00+00:00"
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with Registry.open(tmp_path / "home" / "registry.db") as opened:
        yield opened


def named(record: RunRecord, run_id: str, day: int = 4, **changes: object) -> RunRecord:
    created = f"2026-03-{day:02d}T10:00:00+00:00"
    return record.model_copy(update={"run_id": run_id, "created_at": created, **changes})


@pytest.mark.parametrize("name", factory.ALL)
def test_every_kind_of_run_comes_back_as_it_was_saved(registry: Registry, name: str) -> None:
    record = factory.ALL[name]()
    assert registry.save(record) == "stored"
    loaded = registry.load(record.run_id)
    assert loaded == record
    assert loaded.content_digest() == record.content_digest()


def test_infinite_intervals_and_nan_values_come_back(registry: Registry) -> None:
    record = factory.default_on()
    look = record.looks[-1]
    first = look.effects[0].model_copy(update={"upper": math.inf, "lower": -math.inf})
    open_look = look.model_copy(update={"effects": (first, *look.effects[1:])})
    values = {**record.samples[0].values, "decode/tok_s/c1": math.nan}
    sample = record.samples[0].model_copy(update={"values": values})
    record = record.model_copy(
        update={"looks": (open_look,), "samples": (sample, *record.samples[1:])}
    )
    registry.save(record)
    loaded = registry.load(record.run_id)
    assert loaded.looks[-1].effects[0].upper == math.inf
    assert math.isnan(loaded.samples[0].values["decode/tok_s/c1"])
    assert loaded.content_digest() == record.content_digest()


def test_saving_twice_changes_nothing(registry: Registry) -> None:
    record = factory.default_on()
    assert [registry.save(record), registry.save(record)] == ["stored", "unchanged"]
    assert registry.count() == 1


def test_an_interrupted_run_is_replaced_by_its_decided_self_and_not_the_other_way(
    registry: Registry,
) -> None:
    assert registry.save(factory.interrupted()) == "stored"
    assert registry.save(factory.default_on()) == "replaced"
    assert registry.save(factory.interrupted()) == "kept"
    assert registry.load("2026").status == "decided"
    with registry.store.reading() as connection:
        rows = connection.scalar(text("SELECT count(*) FROM samples"))
    assert rows == sum(len(s.values) for s in factory.default_on().samples)


def test_a_stored_verdict_is_never_overwritten(registry: Registry) -> None:
    registry.save(factory.default_on())
    with pytest.raises(StoreError, match="already decided, with another content"):
        registry.save(factory.regression())
    assert registry.load("2026") == factory.default_on()


def test_a_save_that_fails_half_way_leaves_nothing(registry: Registry) -> None:
    record = factory.default_on()
    twice = record.model_copy(update={"looks": (record.looks[-1], record.looks[-1])})
    with pytest.raises(StoreError):
        registry.save(twice)
    assert registry.count() == 0
    assert registry.default_states() == ()
    assert registry.save(record) == "stored"


def test_a_run_is_found_by_an_unambiguous_beginning(registry: Registry) -> None:
    for run_id in ("20260304T100000Z-aaaa", "20260304T100000Z-aabb", "2026"):
        registry.save(named(factory.default_on(), run_id))
    assert registry.resolve("20260304T100000Z-aab") == "20260304T100000Z-aabb"
    assert registry.resolve("2026") == "2026"
    with pytest.raises(UsageError, match=r"fits 2 runs.*aaaa"):
        registry.resolve("20260304")


def test_an_unknown_run_is_named_with_the_closest(registry: Registry) -> None:
    registry.save(factory.default_on())
    with pytest.raises(UnknownName, match="did you mean '20260304T100000Z-5d3c'"):
        registry.load("20260304T100000Z-5d3d")
    with pytest.raises(UnknownName, match=r"no run '%'"):
        registry.load("%")
    with pytest.raises(UnknownName):
        registry.load("")


def test_history_is_newest_first_and_shows_no_speed_beside_a_failed_parity(
    registry: Registry,
) -> None:
    registry.save(named(factory.default_on(), "a", 1))
    registry.save(named(factory.parity_failed(), "b", 2))
    registry.save(named(factory.default_on(), "c", 3, spec=factory.spec(lever="another")))
    rows = registry.history("fa2_nsplits_cap")
    assert [row.run_id for row in rows] == ["b", "a"]
    assert (rows[0].effect, rows[0].axis) == (None, "")
    assert (rows[1].axis, rows[1].pairs) == ("decode/tok_s/c8", 13)
    assert rows[1].effect == pytest.approx(math.log(1.123))
    assert [row.run_id for row in registry.history(limit=1)] == ["c"]


def test_the_default_state_follows_the_verdicts(registry: Registry) -> None:
    scope = Scope.of(factory.default_on())
    assert registry.default_state(scope).state == "undecided"
    registry.save(named(factory.default_on(), "a", 1))
    assert registry.default_state(scope).label == "on (unconfirmed)"
    registry.save(named(factory.inconclusive(), "b", 2))
    assert registry.default_state(scope).run_id == "a"
    registry.save(named(factory.default_on(), "c", 3))
    assert registry.default_state(scope).confirmed_by == "a"
    assert [row.standing.confirmed for row in registry.history()] == ["a", "", "c"]
    assert [row.run_id for row in registry.latest_verdicts()] == ["c"]
    registry.save(named(factory.regression(), "d", 4))
    assert registry.default_state(scope).state == "off"


def test_the_stored_state_is_the_one_that_the_verdicts_give(registry: Registry) -> None:
    for day, record in enumerate((factory.default_on(), factory.terminal()), start=1):
        registry.save(named(record, f"run-{day}", day))
    with registry.store.reading() as connection:
        row = connection.execute(text("SELECT state, run_id FROM default_states")).one()
    (state,) = registry.default_states()
    assert tuple(row) == (state.state, state.run_id) == ("off", "run-2")


def test_a_screen_is_stored_and_decides_nothing(registry: Registry) -> None:
    registry.save(factory.default_on().model_copy(update={"kind": "screen"}))
    assert registry.count() == 1
    assert registry.default_states() == ()


def test_the_on_set_of_a_scope_is_the_stack_of_a_new_run(registry: Registry) -> None:
    record = factory.default_on()
    registry.save(record)
    where = (record.spec.workload, record.spec.parameters, record.environment.device_kind)
    assert [str(one) for one in registry.default_on_set(*where).settings] == [
        "fa2_nsplits_cap=auto"
    ]
    assert registry.default_on_set("decode", {"sms": 1}, where[2]).settings == ()
    stale = registry.default_on_set(*where, current=Current(versions={"torch": "9"}))
    assert stale.settings == ()
    assert stale.left_out[0][0] == "fa2_nsplits_cap=auto"


def test_an_invalidation_takes_its_default_state_with_it(registry: Registry) -> None:
    registry.save(named(factory.regression(), "a", 1))
    registry.save(named(factory.default_on(), "b", 2))
    done = registry.invalidate(["b"], reason="oracle ran eager", name="Ada", at=AT)
    assert done.runs == ("b",)
    assert [(was, now) for _, was, now in done.changed] == [("on", "off")]
    assert registry.standing("b").invalidated == "oracle ran eager (Ada)"
    assert registry.history()[0].standing.invalidated == "oracle ran eager (Ada)"
    again = registry.invalidate(["b"], reason="another word", name="Bob", at=AT)
    assert (again.changed, again.already) == ((), ("b",))
    assert registry.standing("b").invalidated == "oracle ran eager (Ada)"


def test_an_invalidation_reaches_runs_that_took_the_check_from_the_cache(
    registry: Registry,
) -> None:
    record = factory.default_on()
    checks = record.parity.checks if record.parity else ()
    cached = tuple(check.model_copy(update={"cached": True}) for check in checks)
    parity = record.parity.model_copy(update={"checks": cached}) if record.parity else None
    registry.save(named(record, "a", 1))
    registry.save(named(record, "b", 2, parity=parity))
    registry.save(named(record, "c", 3))
    done = registry.invalidate(["a"], reason="op check compared nothing", name="Ada", at=AT)
    assert done.dependents == ("b",)
    assert registry.standing("b").invalidated.startswith("rests on a check of run a")
    assert registry.standing("c").invalidated == ""


def test_runs_measured_with_an_invalidated_lever_are_named(registry: Registry) -> None:
    registry.save(named(factory.default_on(), "a", 1))
    stack = ({"lever": "fa2_nsplits_cap", "setting": "auto"},)
    other = factory.spec(lever="another", stack=stack)
    registry.save(named(factory.default_on(), "b", 2, spec=other))
    done = registry.invalidate(["a"], reason="leaky", name="Ada", at=AT)
    assert done.measured_with == ("b",)


def test_an_override_shows_wherever_the_verdict_is_until_withdrawn(registry: Registry) -> None:
    record = factory.default_on()
    registry.save(record)
    scope = Scope.of(record)
    said = Override(state="off", name="Ada", reason="customer freeze", at=AT)
    assert registry.override(scope, said).state == "off"
    assert registry.standing(record.run_id).override == "off by Ada: customer freeze"
    assert "overridden" in registry.default_states()[0].flags
    registry.override(scope, Override(state="as-decided", name="Ada", reason="over", at=AT))
    assert registry.default_state(scope).state == "on"


def test_marks_need_a_name_and_a_reason(registry: Registry) -> None:
    registry.save(factory.default_on())
    scope = Scope.of(factory.default_on())
    with pytest.raises(UsageError, match="needs a name and a reason"):
        registry.invalidate(["2026"], reason=" ", name="Ada", at=AT)
    with pytest.raises(UsageError, match="needs a name and a reason"):
        registry.override(scope, Override(state="on", name="", reason="x", at=AT))


def test_a_run_stays_in_the_outbox_until_its_present_content_is_mirrored(
    registry: Registry,
) -> None:
    record = factory.interrupted()
    registry.save(record)
    note = MirrorNote(run_id=record.run_id, uri="u", digest="", error="locked", tried_at=AT)
    registry.note_mirror(note)
    assert registry.unmirrored("u") == (record.run_id,)
    held = note.model_copy(update={"error": "", "digest": record.content_digest()})
    registry.note_mirror(held)
    assert registry.unmirrored("u") == ()
    assert registry.unmirrored("elsewhere") == (record.run_id,)
    registry.save(factory.default_on())
    assert registry.unmirrored("u") == (record.run_id,)


WRITER = """
import sys
from pathlib import Path
from experiments.registry.store import Registry
from support import records_factory as factory
with Registry.open(Path(sys.argv[1])) as registry:
    registry.save(factory.default_on())
    for n in range(5):
        record = factory.regression().model_copy(update={"run_id": f"{sys.argv[2]}-{n}"})
        assert registry.save(record) == "stored"
"""


def test_eight_processes_on_an_empty_registry_all_store_their_runs(tmp_path: Path) -> None:
    path = tmp_path / "home" / "registry.db"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(number)],
            cwd=ROOT,
            env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PATH": "/usr/bin:/bin"},
            stderr=subprocess.PIPE,
        )
        for number in range(8)
    ]
    said = [writer.communicate(timeout=120)[1].decode() for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * 8, said
    with Registry.open(path) as registry:
        assert registry.count() == 41
        with registry.store.reading() as connection:
            assert connection.scalar(text("PRAGMA integrity_check")) == "ok"
            assert connection.scalar(text("PRAGMA journal_mode")) == "wal"
