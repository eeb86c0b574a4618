"""From a profile of what ships to the residual of a row: named groups against their rooflines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.campaign.records import Residual, ResidualGroup, ResidualName
from experiments.floors import floors_of
from experiments.profiling_records import GroupTime, Profile
from experiments.records import Sample

NAMED: Mapping[str, ResidualName] = {
    "gemm": "gemm",
    "attention": "attention",
    "row kernels": "glue",
    "reductions": "glue",
    "copies": "glue",
    "optimiser": "glue",
    "communication": "communication",
    "host gap": "host gap",
    "other": "other",
}
"""Each group of a profile and the group of a row that it belongs to; none is left out."""

ORDER: tuple[ResidualName, ...] = (
    "gemm",
    "attention",
    "glue",
    "host gap",
    "communication",
    "other",
)

COMPUTE, COPY = "gemm_flop_per_s", "copy_bytes_per_s"
"""Ceilings that a profile measures in its own process."""

PROFILED = "profiled"
"""The fact of a sample that says in words what one profiled step is."""

OPERATORS = (
    "read from operators: attention that is written in PyTorch counts as the products and the glue "
    "that it is made of"
)
"""What a profile without kernels cannot tell."""

NO_FLOOR: Mapping[ResidualName, str] = {
    "host gap": "its floor is nothing: no work is done in it",
    "glue": "its floor is nothing: fused into its neighbours it would move no bytes of its own",
}

UNKNOWN = "not known: nobody says its bytes or FLOPs"


def residual_of(profile: Profile, source: str, samples: Sequence[Sample] = ()) -> Residual:
    """The residual of a row.

    Args:
        profile: of the whole set, in the mode in which it runs.
        source: what was profiled.
        samples: timed processes of the same set, whose facts may say the multiple of the floor.
    """
    by_name: dict[ResidualName, list[GroupTime]] = {name: [] for name in ORDER}
    for one in profile.groups:
        by_name[NAMED[one.group]].append(one)
    groups = tuple(_group(name, found, profile) for name, found in by_name.items())
    said = str(samples[-1].telemetry.get(PROFILED) or "") if samples else ""
    return Residual(
        source=source,
        step_ms=profile.step_ms,
        unit=said if said and profile.unit == "step" else profile.unit,
        groups=groups,
        floors=floors_of(samples),
        said=OPERATORS if profile.level == "operators" else "",
    )


def _group(name: ResidualName, found: Sequence[GroupTime], profile: Profile) -> ResidualGroup:
    ms = sum(one.ms for one in found)
    reached, of = _reached(found, ms, profile.ceilings)
    return ResidualGroup(
        group=name,
        ms=ms,
        share=ms / profile.step_ms if profile.step_ms else 0.0,
        launches=sum(one.launches for one in found),
        reached=reached,
        of=of,
        note="" if reached is not None or not ms else NO_FLOOR.get(name, UNKNOWN),
    )


def _reached(
    found: Sequence[GroupTime], ms: float, ceilings: Mapping[str, float]
) -> tuple[float | None, str]:
    """The share of the nearer roofline that a group reaches, and which one that is."""
    if ms <= 0:
        return None, ""
    shares = []
    for values, name, said in (
        ([one.flop for one in found], COMPUTE, "matrix product"),
        ([one.bytes for one in found], COPY, "copy"),
    ):
        known = [value for value in values if value is not None]
        if known and ceilings.get(name):
            shares.append((sum(known) / (ms / 1e3) / ceilings[name], said))
    return max(shares) if shares else (None, "")
