"""``levergate campaign`` on the stub workload: drawn samples, real requests, rules and registry."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cli
from experiments.campaign import tracking as campaign_tracking
from experiments.campaign.records import CampaignRow
from experiments.requests import AbRequest, SyncReport
from experiments.stack.requests import StackRequest
from tests.support import runs
from tests.support.campaign_machine import Machine, home_at
from tests.support.stub_workload import StubWorkload

HEAD = """
name = "stub-row"
summary = "a row of the stub"
workload = "stub"
device = "cpu"
oracle = "plain"
blocks = 4
seed = 5

[parameters]
clock = "virtual"

[[axes]]
axis = "stub/items_s"
at_least = 1.5

[[paths]]
name = "a product from scratch"
state = "unbuilt"
reason = "nobody built it"
"""

SLOW, FAST, ON_TOP = "planted_slow", "planted_fast", "planted_on_top"
GAINS = {
    f"{SLOW}=on": -0.18,
    f"{FAST}=on": 0.22,
    f"{ON_TOP}=on": 0.105,
    **{f"planted_several={n}": 0.05 for n in (1, 2, 4)},
}


def lever(name: str, *candidates: str) -> str:
    named = ", ".join(f'"{one}"' for one in candidates or ("on",))
    return f'\n[[levers]]\nlever = "{name}"\ncandidates = [{named}]\npairs = 6\n'


class Row:
    """The campaign under test: its file, the levers of the catalog, and the commands."""

    def __init__(self, machine: Machine, levers: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.machine, self.levers, self.capsys = machine, levers, capsys

    def write(self, *levers: str, text: str = HEAD) -> None:
        folder = self.machine.home.root / "campaigns"
        folder.mkdir(exist_ok=True)
        (folder / "stub-row.toml").write_text(text + "".join(levers))

    def has(self, *names: str) -> None:
        """Make these the levers of the catalog."""
        for old in self.levers.glob("*.py"):
            old.unlink()
        for name in names:
            shutil.copy(runs.PLANTED / f"{name}.py", self.levers)

    def run(self, *words: str, code: int = 0) -> CampaignRow:
        return self._row(["campaign", "run", "stub-row", "--json", *words], code)

    def status(self) -> CampaignRow:
        return self._row(["campaign", "status", "stub-row", "--json"], 0)

    def close(self) -> CampaignRow:
        return self._row(["campaign", "close", "stub-row", "--name", "ada", "--json"], 0)

    def _row(self, words: list[str], code: int) -> CampaignRow:
        self.capsys.readouterr()
        assert cli.main(words) == code, self.capsys.readouterr().err
        answer: Any = json.loads(self.capsys.readouterr().out)
        assert answer["state"] == answer["row"]["state"]
        return CampaignRow.model_validate(answer["row"])

    def said(self, *words: str, code: int = 0) -> str:
        self.capsys.readouterr()
        assert cli.main(list(words)) == code
        found = self.capsys.readouterr()
        return " ".join((found.out + found.err).split())

    @property
    def measured(self) -> list[str]:
        """What was asked of the machine, in order."""
        return [
            one.lever if isinstance(one, AbRequest) else "binding" for one in self.machine.asked
        ]


@pytest.fixture
def row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Row:
    runs.use_stub(monkeypatch)
    (tmp_path / "levers").mkdir()
    monkeypatch.setenv("LEVERGATE_LEVERS", str(tmp_path / "levers"))
    monkeypatch.setenv("LEVERGATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LEVERGATE_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setattr(campaign_tracking, "mirror", lambda *_: "")
    monkeypatch.setattr("experiments.pipeline.sync", SyncReport)
    machine = Machine(home_at(tmp_path / "home"), dict(GAINS))
    machine.use(monkeypatch)
    made = Row(machine, tmp_path / "levers", capsys)
    made.has(SLOW, FAST, "planted_several")
    made.write(lever(SLOW), lever("planted_several", "absent"), lever(FAST))
    return made


def test_a_campaign_measures_its_levers_and_what_ships_and_ends_terminal(row: Row) -> None:
    before = row.status()
    assert [one.state for one in before.levers] == ["open", "unavailable", "open"]
    assert before.next is not None
    assert (before.state, before.next.what) == ("open", f"measure {SLOW}")
    assert before.next.estimate_s is not None
    after = row.run()
    assert row.measured == [SLOW, FAST, "binding"]
    assert after.state == "TERMINAL", after.why
    slow, several, fast = after.levers
    assert (str(slow.outcome), slow.default_state, slow.credited) == ("gated-OFF", "off", "not on")
    assert slow.accepted == "not held"
    assert (several.state, several.why) == ("unavailable", "absent: this machine has none")
    assert (str(fast.outcome), fast.accepted, fast.credited) == ("default-ON", "held", "gain")
    assert fast.default_state == "on (unconfirmed)"
    (axis,) = after.axes
    assert axis.ratio == pytest.approx(0.95 * math.exp(0.22) / 1.5, abs=0.01)
    assert (axis.state, axis.source) == ("missed", after.binding)
    assert {(path.name, path.state) for path in after.paths} == {
        ("a product from scratch", "unbuilt"),
        ("planted_several", "unavailable"),
    }
    assert (after.next, after.confidence) == (None, "low")


def test_the_levers_may_have_a_shorter_oracle_than_the_binding_run(
    row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StubWorkload, "oracles", ("plain", "plain:"))
    row.write(lever(FAST), text=HEAD.replace('"plain"', '"plain"\nlever_oracle = "plain:1"'))
    row.run(code=3)
    found = {type(one).__name__: one.oracle for one in row.machine.asked}
    assert found == {"AbRequest": "plain:1", "StackRequest": "plain"}
    row.write(lever(FAST), text=HEAD.replace('"plain"', '"plain"\nlever_oracle = "fancy"'))
    assert "fancy" in row.said("campaign", "run", "stub-row", code=2)


def test_a_verdict_about_failing_axes_counts_where_they_were_held_against_the_rows_oracle(
    row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StubWorkload, "oracles", ("plain", "fancy", "plain:"))
    row.has(SLOW, FAST)
    row.write(lever(SLOW), lever(FAST))
    row.run()
    row.write(lever(SLOW), lever(FAST), text=HEAD.replace('"plain"', '"fancy"'))
    other = row.status()
    assert [one.state for one in other.levers] == ["decided", "open"]
    assert "(failing-axis-win)" in other.levers[1].why
    assert "was held against plain and not fancy" in other.levers[1].why
    short = HEAD.replace('"plain"', '"plain"\nlever_oracle = "plain:1"')
    row.write(lever(SLOW), lever(FAST), text=short)
    assert [one.state for one in row.status().levers] == ["decided", "decided"]
    row.machine.asked.clear()
    row.write(lever(SLOW), lever(FAST), text=HEAD.replace('"plain"', '"fancy"'))
    assert [one.state for one in row.run().levers] == ["decided", "decided"]
    assert row.measured == [FAST, "binding"]


def test_the_residual_names_each_group_with_its_share_and_its_distance(row: Row) -> None:
    residual = row.run().residual
    assert residual is not None
    by_name = {one.group: one for one in residual.groups}
    assert sum(one.share for one in residual.groups) == pytest.approx(1.0)
    assert by_name["gemm"].reached == pytest.approx(0.5)
    assert by_name["gemm"].of == "matrix product"
    assert by_name["glue"].reached is None
    assert by_name["glue"].note
    assert residual.floors == {"decode/floor_ratio/c1": pytest.approx(2.5)}


def test_what_is_decided_here_is_not_measured_again(row: Row) -> None:
    first = row.run()
    row.machine.asked.clear()
    again = row.run()
    assert row.measured == []
    assert (again.state, again.binding) == (first.state, first.binding)


def test_a_campaign_that_was_killed_goes_on_with_the_run_that_was_cut(row: Row) -> None:
    row.machine.kill = {FAST, "stack"}
    said = row.said("campaign", "run", "stub-row", "--yes", code=130)
    assert "go on with levergate campaign run stub-row" in said
    (cut,) = (path.name for path in row.machine.home.runs.iterdir())
    row.machine.asked.clear()
    row.said("campaign", "run", "stub-row", "--yes", code=130)
    assert row.measured == [FAST, "binding"]
    assert row.machine.asked[0] == AbRequest(lever=FAST, cand="on", resume=cut)
    row.machine.asked.clear()
    assert row.run().state == "TERMINAL"
    (binding,) = row.machine.asked
    assert isinstance(binding, StackRequest)
    assert binding.resume is not None


def test_a_row_whose_targets_are_reached_is_met(row: Row) -> None:
    row.write(lever(FAST), text=HEAD.replace("1.5", "1.1"))
    row.has(FAST)
    found = row.run()
    assert (found.state, found.axes[0].state) == ("met", "met")


def test_an_absolute_target_is_held_against_what_ships(row: Row) -> None:
    row.write(lever(FAST), text=HEAD.replace("at_least = 1.5", "value = 1300.0"))
    row.has(FAST)
    found = row.run()
    assert found.axes[0].target == ">= 1300 items/s"
    assert found.axes[0].ratio == pytest.approx(math.exp(0.22) / 1.3, abs=0.01)
    assert found.state == "TERMINAL"


def test_with_no_lever_on_the_reference_is_held_against_the_oracle(row: Row) -> None:
    row.write(lever(SLOW))
    row.has(SLOW)
    found = row.run()
    assert found.axes[0].ratio == pytest.approx(0.95 / 1.5, abs=0.01)
    assert found.state == "TERMINAL"
    request = row.machine.asked[-1]
    assert isinstance(request, StackRequest)
    assert request.bare


def test_the_binding_run_leaves_each_lever_out_once_and_gives_the_credit(row: Row) -> None:
    row.write(lever(FAST), lever(ON_TOP))
    row.has(FAST, ON_TOP)
    found = row.run()
    assert [one.credited for one in found.levers] == ["gain", "gain"]
    assert "stub/items_s +1" in found.levers[1].credit


def test_a_lever_against_which_the_binding_run_speaks_is_open_and_measured_again(row: Row) -> None:
    row.write(lever(FAST), lever(ON_TOP))
    row.has(FAST, ON_TOP)
    row.machine.together = {f"{FAST}=on + {ON_TOP}=on": 0.15}
    found = row.run(code=3)
    assert found.state == "open"
    (left,) = found.open_levers
    assert left.lever == ON_TOP
    assert left.why.startswith("the binding run speaks against it: stub/items_s -6.")
    row.machine.asked.clear()
    row.machine.together.clear()
    assert row.run().state == "TERMINAL"
    assert row.measured == [ON_TOP, "binding"]


def test_an_undecided_lever_stays_open_and_is_measured_with_more_pairs(row: Row) -> None:
    row.write(lever(FAST).replace("pairs = 6\n", ""))
    row.has(FAST)
    row.machine.noise, row.machine.gains[f"{FAST}=on"] = 0.1, 0.02
    found = row.run(code=3)
    (left,) = found.open_levers
    assert "inconclusive" in left.why
    assert "would settle it" in left.why
    row.machine.asked.clear()
    row.run(code=3)
    request = row.machine.asked[0]
    assert isinstance(request, AbRequest)
    assert request.max_pairs is not None
    assert request.max_pairs > 40


def test_a_closed_row_stays_closed_until_something_opens_it(row: Row) -> None:
    assert "is open" in row.said("campaign", "close", "stub-row", "--name", "ada", code=2)
    row.run()
    assert row.close().closed_by == "ada"
    assert row.status().closed_by == "ada"
    assert row.run().closed_by == "ada"
    assert "CLOSED by ada" in row.said("campaign", "status", "stub-row")
    assert "TERMINAL, closed" in row.said("campaign", "list")

    row.has(SLOW, FAST, "planted_several", "planted_same")
    added = row.status()
    assert (added.state, added.closed_by) == ("open", "")
    assert added.reopened == ("planted_same was added to the catalog",)
    assert "planted_same was added" in row.said("campaign", "status", "stub-row", "--markdown")
    assert row.status().reopened == added.reopened


def test_a_row_opens_again_when_a_verdict_in_it_is_invalidated(row: Row) -> None:
    found = row.run()
    run = found.levers[0].run_id
    words = ["--name", "ada", "--reason", "the clock was wrong"]
    row.said("invalidate", run, *words)
    fallen = row.status()
    assert fallen.state == "open"
    assert fallen.reopened == (f"the verdict of {SLOW} fell: on: its verdict was invalidated",)


def test_a_row_opens_again_when_the_source_of_a_lever_or_the_stack_changes(
    row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    row.run()
    from experiments import environment

    versions = {**environment.stack_versions(""), "torch": "9.9"}
    monkeypatch.setattr(environment, "stack_versions", lambda _="": versions)
    stale = row.status()
    assert stale.state == "open"
    assert any("the stack changed: torch" in text for text in stale.reopened)
    assert [one.state for one in stale.levers] == ["open", "unavailable", "open"]


def test_a_row_opens_again_when_its_oracle_is_another_version(
    row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    from experiments import environment

    versions = {"an-oracle": "1.0"}
    known = environment.package_version
    monkeypatch.setattr(environment, "package_version", lambda n: versions.get(n) or known(n))
    row.machine.package = "an-oracle 1.0"
    assert row.run().state == "TERMINAL"
    versions["an-oracle"] = "2.0"
    stale = row.status()
    assert stale.reopened == (
        "no longer bound: the oracle changed: an-oracle 1.0 -> an-oracle 2.0",
    )
    assert {one.state for one in stale.levers} == {"decided", "unavailable"}
    row.machine.asked.clear()
    row.machine.package = "an-oracle 2.0"
    assert row.run().state == "TERMINAL"
    assert row.measured == ["binding"]


def test_a_budget_that_is_spent_leaves_the_rest_open(row: Row) -> None:
    found = row.run("--budget", "1s", "--lever-budget", "1s", code=3)
    assert row.measured in ([], ["binding"])
    assert found.state == "open"
    assert found.open_levers


def test_the_report_is_written_beside_the_row(row: Row, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    row.run("--html", str(page))
    folder = row.machine.home.root / "campaigns" / "stub-row"
    assert "Paths not exhausted" in page.read_text()
    assert page.read_text().startswith("<!doctype html>")
    assert (folder / "row.md").read_text().startswith("### ⚫ TERMINAL: campaign stub-row")
    stored = CampaignRow.model_validate_json((folder / "row.json").read_text())
    assert stored.state == "TERMINAL"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD + lever("planted_fats"), "did you mean 'planted_fast'"),
        (HEAD + lever(FAST, "auto"), "has no setting 'auto'"),
        (HEAD.replace("stub/items_s", "stub/item_s") + lever(FAST), "did you mean 'stub/items_s'"),
        (HEAD.replace('"plain"', '"plane"') + lever(FAST), "did you mean 'plain'"),
        (HEAD + lever("segment_sum_broadcast"), "has no site in stub"),
        (HEAD, "levers: Field required"),
        (HEAD + lever(FAST) + lever(FAST), f"the path {FAST} is named 2 times"),
        (HEAD + lever(FAST, "off"), "off is the reference"),
        (HEAD.replace("blocks = 4", "blocks = 5") + lever(FAST), "every second block"),
        (HEAD.replace("seed = 5", 'budget = "soon"') + lever(FAST), "is no time"),
        (HEAD.replace("stub-row", "Stub Row") + lever(FAST), "small letters"),
        (HEAD.replace("stub-row", "other") + lever(FAST), "call it other.toml"),
        ("name = ", "is no TOML"),
        ('kind = "planned"\n' + HEAD, "write measured or recorded"),
    ],
)
def test_a_file_that_cannot_be_used_says_what_is_wrong_and_the_cure(
    row: Row, text: str, said: str
) -> None:
    row.write(text=text)
    assert said in row.said("campaign", "run", "stub-row", code=2)
    assert row.measured == []


def test_a_campaign_that_is_not_known_suggests_the_closest(row: Row) -> None:
    assert "did you mean 'decode-cpu'" in row.said("campaign", "status", "decode-cpuu", code=2)


def test_a_broken_file_is_listed_with_its_fault_and_harms_no_other(row: Row) -> None:
    row.write(text="name = ")
    said = row.said("campaign", "list")
    assert "is no TOML" in said
    assert "published-mxfp4" in said


def test_a_measured_campaign_has_nothing_to_replay(row: Row) -> None:
    assert "leave out --replay" in row.said("campaign", "run", "stub-row", "--replay", code=2)


def test_a_campaign_of_a_device_that_is_not_here_says_so(row: Row) -> None:
    row.write(lever(FAST), text=HEAD.replace('device = "cpu"', 'device = "cuda"'))
    away = row.status()
    assert (away.state, away.levers[0].state) == ("open", "open")
    assert "no device 'cuda'" in away.levers[0].why
    assert "cannot run here" in row.said("campaign", "run", "stub-row", code=2)


def test_several_settings_are_a_selection_and_an_interrupted_one_goes_on(
    row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    from experiments import several
    from experiments.family import store as family_store
    from experiments.family.records import FamilyHead
    from experiments.requests import Listener

    asked: list[tuple[str, object]] = []

    def select(request: AbRequest, settings: tuple[str, ...], listener: Listener) -> None:
        asked.append(("ab", settings))
        runs_of = tuple((name, f"run-{name}") for name in settings)
        head = FamilyHead(family_id="20260101T000000-aaaaaa", runs=runs_of, budget_s=None,
                          request=request)  # fmt: skip
        (row.machine.home.root / "families" / head.family_id).mkdir(parents=True)
        family_store.begin(row.machine.home, head)
        raise KeyboardInterrupt

    def resume(request: AbRequest, listener: Listener) -> None:
        asked.append(("resume", request.resume))
        assert request == AbRequest(lever="planted_several", resume=request.resume)
        begun = family_store.begun(row.machine.home, str(request.resume))
        assert begun is not None
        row.machine.ab(replace(begun.request, cand="4"), listener)

    monkeypatch.setattr(several, "ab", select)
    monkeypatch.setattr(several, "resume", resume)
    row.has("planted_several")
    row.write(lever("planted_several", "1", "4"))
    row.said("campaign", "run", "stub-row", "--yes", code=130)
    found = row.run("--lever-budget", "10m")
    assert (found.levers[0].setting, str(found.levers[0].outcome)) == ("4", "default-ON")
    assert asked == [("ab", ("1", "4")), ("resume", "20260101T000000-aaaaaa")]
