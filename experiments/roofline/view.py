"""A profile as a table: each group with its time, its share, its distance from the ceilings."""

from __future__ import annotations

from experiments import formats
from experiments.profiling_records import ENQUEUE_MS, GroupTime, Profile
from experiments.stack.view import NOTHING, Table

MOST_GAPS = 8
MOST_KERNELS = 12
"""Kernels that the table of the longest ones shows; the record has more."""

SLOWED = 1.05
"""A step that much longer under the profiler is bound by the host there."""

TITLE = "Where the time goes"


def groups(profile: Profile) -> Table:
    """The named groups; ``other`` and the host's gap among them, however small."""
    columns = ("group", "ms", "share", "launches", "reached", "of the ceiling")
    rows = tuple(_row(one, profile) for one in profile.groups)
    return Table(TITLE, columns, rows, _notes(profile))


def kernels(profile: Profile) -> Table:
    """The longest kernels (operators on a CPU)."""
    columns = ("kernel" if profile.level == "kernels" else "operator", "group", "ms", "launches")
    rows = tuple(
        (one.name, one.group, f"{one.ms:.3f}", f"{one.launches:g}")
        for one in profile.kernels[:MOST_KERNELS]
    )
    left = max(0, len(profile.kernels) - MOST_KERNELS) + profile.others
    return Table("Longest", columns, rows, (f"{left} more are left out here",) if left else ())


def gaps(profile: Profile) -> Table | None:
    """Where the device waited longest, under the profiler; None where nobody knows."""
    if not profile.gaps or profile.idle_ms is None:
        return None
    columns = ("after", "before", "ms", "times")
    rows = tuple(
        (one.after, one.before, f"{one.ms:.3f}", f"{one.times:.3g}")
        for one in profile.gaps[:MOST_GAPS]
    )
    said = f"under the profiler the device waited {profile.idle_ms:.3f} ms of a {profile.unit}"
    return Table("Longest waits of the device", columns, rows, (said,))


def _row(one: GroupTime, profile: Profile) -> tuple[str, ...]:
    reached, share = _distance(one, profile)
    return (
        one.group,
        f"{one.ms:.3f}",
        formats.share(one.ms / profile.step_ms) if profile.step_ms else NOTHING,
        f"{one.launches:g}" if one.launches else NOTHING,
        reached,
        share,
    )


def _distance(one: GroupTime, profile: Profile) -> tuple[str, str]:
    """The rate that a group reached, and its share of the measured ceiling."""
    if one.ms <= 0:
        return NOTHING, NOTHING
    for work, name, scale, unit in (
        (one.flop, "gemm_flop_per_s", 1e12, "TFLOP/s"),
        (one.bytes, "copy_bytes_per_s", 1e12, "TB/s"),
    ):
        ceiling = profile.ceilings.get(name)
        if work is not None and ceiling:
            rate = work / (one.ms / 1e3)
            return f"{rate / scale:.3g} {unit}", formats.share(rate / ceiling)
    return NOTHING, NOTHING


def _notes(profile: Profile) -> tuple[str, ...]:
    gemm = profile.ceilings.get("gemm_flop_per_s", 0.0) / 1e12
    copy = profile.ceilings.get("copy_bytes_per_s", 0.0) / 1e12
    notes = [
        f"shares of a {profile.unit} of {profile.step_ms:.3f} ms "
        f"(without the profiler {profile.plain_step_ms:.3f} ms, under it "
        f"{profile.profiled_step_ms:.3f} ms; mean of {profile.steps})",
        f"ceilings measured in this process: {gemm:.4g} TFLOP/s (matrix product), "
        f"{copy:.3g} TB/s (copy, read and written)",
    ]
    if any(one.bytes is not None for one in profile.groups):
        notes.append(
            "TB/s: the least bytes that the work must move, so that what is moved twice shows"
        )
    if profile.level == "kernels":
        notes.append("host gap: wall-clock in which no kernel and no copy ran on the device")
        if (enqueue_ms := profile.facts.get(ENQUEUE_MS)) is not None:
            notes.append(
                f"the host takes {float(enqueue_ms):.3f} ms to enqueue a {profile.unit} of "
                f"{profile.plain_step_ms:.3f} ms on an idle device, waits for room in the device's "
                "queue included"
            )
        if profile.profiled_step_ms > SLOWED * profile.plain_step_ms:
            notes.append(
                "the profiler slowed the host so much that the device waited, and its clock may "
                "have been higher under the kernels: then the host gap is too large by that"
            )
    else:
        notes.append("host gap: dispatch, views, allocation, the autograd engine, Python")
    if profile.overlap_ms > 0.01 * profile.step_ms:
        notes.append(f"{profile.overlap_ms:.3f} ms ran beside something else, and count twice")
    return tuple(notes)
