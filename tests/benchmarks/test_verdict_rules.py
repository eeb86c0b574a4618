"""The rules of other tools are those of scipy, whichever shift; a noise is measured to the end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats as scipy_stats

from benchmarks import verdicts
from benchmarks.verdict_noise import recorded, simulated
from benchmarks.verdict_rules import LAYOUTS, RULES, arms, exact_p, mann_whitney, welch

CALIBRATION = (
    Path(__file__).resolve().parents[2] / "docs" / "results" / "cpu" / "calibration-decode.json"
)
SHIFTS = (0.0, 0.5, -0.5)


def drawn(n: int, *, tied: bool = False) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    both = rng.normal(size=(2, 40, n))
    return tuple(np.round(both, 1) if tied else both)  # type: ignore[return-value]


def signed(statistic: np.ndarray, p: np.ndarray) -> np.ndarray:
    return np.sign(statistic) * -np.log10(np.maximum(p, 1e-300))


@pytest.mark.parametrize("n", [3, 10, 60])
def test_welch_is_scipys_for_every_shift(n: int) -> None:
    ref, cand = drawn(n)
    for shift, found in zip(SHIFTS, welch(ref, cand, SHIFTS), strict=True):
        theirs = scipy_stats.ttest_ind(ref, cand - shift, axis=1, equal_var=False)
        np.testing.assert_allclose(found, signed(theirs.statistic, theirs.pvalue), rtol=1e-9)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("n", [3, 8, 10, 60])
def test_mann_whitney_is_scipys_for_every_shift_with_ties_and_without(n: int, tied: bool) -> None:
    ref, cand = drawn(n, tied=tied)
    method = "exact" if n <= 8 else "asymptotic"
    for shift, found in zip(SHIFTS, mann_whitney(ref, cand, SHIFTS), strict=True):
        theirs = scipy_stats.mannwhitneyu(ref, cand - shift, axis=1, method=method)
        expected = signed(theirs.statistic - n * n / 2, theirs.pvalue)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_the_exact_distribution_of_u_is_symmetric_and_whole() -> None:
    p = exact_p(3)
    assert p[0] == 1.0
    assert p[9] == pytest.approx(2 / 20)
    assert p[8] == pytest.approx(4 / 20)


def test_every_layout_gives_each_arm_n_runs_of_its_own() -> None:
    x_Rn2 = np.arange(2 * 5 * 2, dtype=float).reshape(2, 5, 2)
    for layout in LAYOUTS:
        ref, cand = arms(np.random.default_rng(0), x_Rn2, 4, layout)
        assert ref.shape == cand.shape == (2, 4)
        for run in range(2):
            assert len({*ref[run], *cand[run]}) == 8


def test_recorded_noise_is_resampled_in_its_own_order() -> None:
    noises = list(recorded(CALIBRATION, "tok_s"))
    assert [noise.name.split(",")[0] for noise in noises] == [
        f"recorded decode/tok_s/c{count}" for count in (1, 2, 4, 8)
    ]
    x_Rn2 = noises[0].draw(np.random.default_rng(0), 3, 25)
    assert x_Rn2.shape == (3, 25, 2)
    levels = json.loads(CALIBRATION.read_text())
    levels = levels.get("calibration", levels)["slowness"]["decode/tok_s/c1"]
    assert set(x_Rn2[..., 0].ravel()) <= {first for first, _ in levels}


def test_one_noise_is_measured_with_every_rule() -> None:
    noise = next(simulated(0.01, 3.0, 0.02))
    found = verdicts.measure(noise, 60, 1)
    assert found["ours"]["false"] <= 0.05
    assert {use["rule"] for use in found["uses"]} == {rule.name for rule in RULES}
    plain = next(use for use in found["uses"] if use["n"] == 1)
    assert plain["false"] > 0.1
    assert found["ratio_sized"] > 0


def test_the_page_says_what_was_found() -> None:
    """The recorded column, and the rule that holds on every noise."""
    root = CALIBRATION.parents[3]
    found = json.loads((CALIBRATION.parent / "verdicts.json").read_text())
    page = (root / "docs" / "statistics.md").read_text()
    words = {
        "one run each": "one run each",
        "means with a threshold": "means with a threshold",
        "Welch t, unpaired": "Welch",
        "Mann-Whitney, unpaired": "Mann-Whitney",
        "intervals overlap": "intervals overlap",
    }
    first = found["results"][0]
    shown = 0
    for use in first["uses"]:
        alone = use["n"] == 1
        label = words[use["rule"]] + ("" if alone else f", {use['layout']}")
        row = next((line for line in page.splitlines() if line.startswith(f"| {label} |")), "")
        if not row:
            continue
        last = row.rstrip(" |").rpartition("|")[2].split()
        assert float(last[0]) == pytest.approx(100 * use["false"], abs=0.5), label
        if len(last) == 3:
            assert float(last[2].rstrip(")")) == pytest.approx(100 * use["power"], abs=0.5), label
        shown += 1
    assert shown == 8
    best = min(found["everywhere"], key=lambda row: row["device_s_per_right"])
    ours = [one["ours"] for one in found["results"]]
    cost = sum(one["device_s_per_right"] for one in ours) / len(ours)
    said = " ".join(page.split())
    assert len(ours) == 22
    assert f"at {best['n']} runs an arm, {best['device_s_per_right']:.0f} device seconds" in said
    assert f"**{best['device_s_per_right'] / cost:.1f} times ours**" in said
    assert f"power, {cost:.0f} device seconds to a right verdict" in said
