"""The table of public fault reports: every report once, and every test that it names exists."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "docs" / "cases.md"
REPORTS = ROOT / "tests" / "cases" / "reports.jsonl"
ID = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def rows() -> list[list[str]]:
    """The cells of each report's row."""
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("| [")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def links() -> list[str]:
    return [json.loads(line)["link"] for line in REPORTS.read_text().splitlines()]


def test_every_report_is_in_the_table_once() -> None:
    found = [re.search(r"\((https://[^)]+)\)", row[0]) for row in rows()]
    assert sorted(one[1] for one in found if one) == sorted(links())
    assert len(found) == 50


def test_every_row_says_what_happens_and_names_a_test() -> None:
    for row in rows():
        assert len(row) == 4, row
        assert all(row), row
        assert ID.search(row[3]), row[0]


def test_every_test_that_is_named_exists() -> None:
    named = ID.findall(TABLE.read_text())
    assert len(named) >= 50
    for file, name in named:
        text = (ROOT / file).read_text()
        assert re.search(rf"^def {name}\(", text, re.MULTILINE), f"{file}::{name}"


def test_every_link_beside_a_test_is_a_report_of_the_table() -> None:
    known = set(links())
    for file in sorted((ROOT / "tests").glob("test_reports_*.py")):
        for link in re.findall(r"^# (https://\S+)$", file.read_text(), re.MULTILINE):
            assert link in known, f"{file.name}: {link}"
