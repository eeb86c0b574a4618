"""What every lever of the catalog must do, whatever it changes."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator

import pytest

from experiments.workloads import catalog as workloads
from experiments.workloads.base import DeviceFacts
from levers import catalog
from levers.base import OFF, Lever, Site, claims, engaged
from levers.errors import LeverConflict
from levers.lint import SampleFacts, complaints
from levers.policy import MAX_GUARDS, GatingPolicy, ParityClass

LEVERS = [entry.lever for entry in catalog.listed() if entry.lever is not None]
IDS = [lever.name for lever in LEVERS]
CPU = DeviceFacts(device="cpu", kind="test cpu", memory_bytes=8 << 30)
each = pytest.mark.parametrize("lever", LEVERS, ids=IDS)


def original(*arguments: object) -> object:
    return arguments


def sites(lever: Lever) -> dict[str, Site]:
    return {name: Site(name, original) for name in lever.touches}


def ons(lever: Lever) -> Iterator[str]:
    """Every named setting that is not off, and the ends of its range."""
    yield from (name for name in lever.settings.names if name != OFF)
    for end in (lever.settings.minimum, lever.settings.maximum):
        if end is not None:
            yield str(end)


def facts(device: str = "cpu", workload: str = "decode", lever: Lever | None = None) -> SampleFacts:
    return SampleFacts(device, workload, sites=lever.touches if lever else ())


def source(lever: Lever) -> str:
    return inspect.getsource(sys.modules[type(lever).__module__])


def test_no_built_in_lever_is_broken() -> None:
    assert [(entry.name, entry.broken) for entry in catalog.listed() if entry.broken] == []
    assert len(LEVERS) >= len(catalog.BUILT_IN)


@each
def test_it_is_acceptable(lever: Lever) -> None:
    assert complaints(lever) == ()


@each
def test_it_can_be_switched_off_and_on(lever: Lever) -> None:
    assert lever.settings.check(lever.name, OFF) == OFF
    assert list(ons(lever))
    for setting in ons(lever):
        assert lever.settings.check(lever.name, setting) == setting


@each
def test_engagement_changes_every_site_and_restores_the_very_object(lever: Lever) -> None:
    for setting in ons(lever):
        known = sites(lever)
        with engaged(lever, known, setting):
            for name, site in known.items():
                assert site.launch is not original, f"{setting} left {name} as it was"
        assert all(site.launch is original for site in known.values())


@each
def test_it_restores_after_an_exception_in_the_body(lever: Lever) -> None:
    known = sites(lever)
    with pytest.raises(ZeroDivisionError), engaged(lever, known, next(ons(lever))):
        1 / 0  # noqa: B018
    assert all(site.launch is original for site in known.values())


@each
def test_it_puts_back_what_it_found_and_not_a_default(lever: Lever) -> None:
    def another(*arguments: object) -> object:
        return arguments

    known = {name: Site(name, another) for name in lever.touches}
    with engaged(lever, known, next(ons(lever))):
        pass
    assert all(site.launch is another for site in known.values())


@each
def test_off_changes_nothing(lever: Lever) -> None:
    known = sites(lever)
    with engaged(lever, known, OFF):
        assert all(site.launch is original for site in known.values())


@each
def test_a_site_that_is_not_there_is_a_conflict_before_any_change(lever: Lever) -> None:
    with pytest.raises(LeverConflict, match="does not have"), engaged(lever, {}, next(ons(lever))):
        pass


@each
def test_a_second_lever_on_its_sites_is_a_conflict(lever: Lever) -> None:
    class Rival(type(lever)):  # type: ignore[misc]
        name = "rival"
        supersedes = ()
        composes_with = ()

    with pytest.raises(LeverConflict, match="rival"):
        claims([lever, Rival.__new__(Rival)])


@each
def test_a_witness_without_observations_saw_nothing(lever: Lever) -> None:
    assert all(dict(lever.witness(site)) == {} for site in sites(lever).values())


@each
def test_the_witness_tells_two_plans_apart(lever: Lever) -> None:
    for name in lever.touches:
        seen = []
        for plan in ("plan=1", "plan=2"):
            site = Site(name, original)
            site.observe("axis", plan)
            seen.append(dict(lever.witness(site)))
        assert seen[0] != seen[1]
        assert "axis" in seen[0]


@each
def test_unmet_gives_a_tuple_of_reasons_and_off_is_always_met(lever: Lever) -> None:
    for device in ("cpu", "cuda"):
        for setting in (OFF, *ons(lever)):
            for workload in lever.workloads:
                reasons = lever.unmet(facts(device, workload, lever), setting)
                assert isinstance(reasons, tuple)
                assert all(isinstance(reason, str) and reason for reason in reasons)
                assert setting != OFF or reasons == ()


@each
def test_where_its_sites_are_missing_it_is_unmet(lever: Lever) -> None:
    for setting in ons(lever):
        assert lever.unmet(SampleFacts("cpu", lever.workloads[0]), setting)


@each
def test_its_variables_are_text_and_leave_the_kill_switch_alone(lever: Lever) -> None:
    for setting in (OFF, *ons(lever)):
        variables = lever.environment(setting)
        assert all(isinstance(text, str) for pair in variables.items() for text in pair)
        assert lever.env not in variables


@each
def test_its_policies_build_and_keep_to_the_limits(lever: Lever) -> None:
    for device in ("cpu", "cuda"):
        for workload in lever.workloads:
            policy = lever.policy(facts(device, workload, lever))
            assert isinstance(policy, GatingPolicy)
            assert len(policy.guards) <= MAX_GUARDS
            assert policy.claims is not ParityClass.BROKEN


@each
def test_its_policy_names_axes_that_its_workload_reports(lever: Lever) -> None:
    for name in lever.workloads:
        workload = workloads.get(name)
        parameters = workload.resolve({}, CPU)
        axes = [axis.name for axis in workload.axes(parameters)]
        assert set(lever.touches) <= set(workload.sites(parameters))
        policy = lever.policy(SampleFacts("cpu", name, parameters, workload.sites(parameters)))
        assert any(policy.is_primary(axis) for axis in axes)
        for guard in policy.guards:
            assert any(guard.covers(axis) for axis in axes), guard.axis


@each
def test_its_docstring_says_mechanism_limits_and_sources(lever: Lever) -> None:
    text = ast.get_docstring(ast.parse(source(lever))) or ""
    assert len(text.splitlines()) >= 8
    assert re.search(r"does \*?not\*? help", text), "where it does not help"
    assert re.search(r"^Sources?:", text, re.MULTILINE), "sources"
    assert re.search(r"[Mm]echanism|[Bb]ecause", text), "mechanism"


@each
def test_its_file_imports_no_torch_and_no_other_lever(lever: Lever) -> None:
    tree = ast.parse(source(lever))
    heads = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [n.module or "" for n in heads if isinstance(n, ast.ImportFrom)]
    names += [alias.name for n in heads if isinstance(n, ast.Import) for alias in n.names]
    assert not [name for name in names if name.split(".")[0] in ("torch", "triton", "experiments")]
    others = {f"levers.{other.name}" for other in LEVERS if other is not lever}
    assert not others & set(names)


@each
def test_its_hooks_have_docstrings(lever: Lever) -> None:
    hooks = ("policy", "unmet", "environment", "enable", "disable", "witness", "op_cases")
    assert [name for name in hooks if not inspect.getdoc(getattr(type(lever), name))] == []


@each
def test_it_offers_op_cases(lever: Lever) -> None:
    for setting in list(ons(lever))[:1]:
        cases = lever.op_cases(setting, "cpu")
        assert len(cases) >= 1
        assert len({case.name for case in cases}) == len(cases)
