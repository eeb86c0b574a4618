from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from experiments import github

MARKER = "<!-- levergate lever scope -->"

GH = """#!{python}
import json, pathlib, sys
here = pathlib.Path(__file__).parent
calls = here / "calls"
calls.open("a").write(json.dumps(sys.argv[1:]) + "\\n")
if (here / "deny").exists():
    print("gh: Resource not accessible by integration (HTTP 403)", file=sys.stderr)
    sys.exit(1)
if "--paginate" in sys.argv:
    print((here / "comments").read_text(), end="")
elif (here / "garbage").exists():
    print("<html>")
else:
    (here / "body").write_text(json.load(sys.stdin)["body"])
    print(json.dumps({{"html_url": "https://github.com/o/r/pull/7#c"}}))
"""


@pytest.fixture
def gh(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "comments").write_text("")
    script = folder / "gh"
    script.write_text(GH.format(python=sys.executable))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return folder


def calls(folder):
    return [json.loads(line) for line in (folder / "calls").read_text().splitlines()]


def test_the_first_post_is_a_new_marked_comment(gh, tmp_path):
    posted = github.post("text", MARKER, 7, tmp_path / "kept.md")
    assert (posted.url, posted.updated) == ("https://github.com/o/r/pull/7#c", False)
    assert (gh / "body").read_text() == f"{MARKER}\ntext"
    assert calls(gh)[1][1:4] == ["-X", "POST", "repos/{owner}/{repo}/issues/7/comments"]
    assert not (tmp_path / "kept.md").exists()


def test_the_second_post_updates_our_comment_and_no_other(gh, tmp_path):
    theirs = {"id": 1, "body": f"I quote {MARKER}"}
    ours = {"id": 2, "body": f"{MARKER}\nold"}
    (gh / "comments").write_text("".join(json.dumps(one) + "\n" for one in (theirs, ours)))
    assert github.post("new", MARKER, 7, tmp_path / "kept.md").updated
    assert calls(gh)[1][1:4] == ["-X", "PATCH", "repos/{owner}/{repo}/issues/comments/2"]


def test_without_write_permission_the_text_goes_to_a_file_and_the_job_summary(
    gh, tmp_path, monkeypatch
):
    (gh / "deny").touch()
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    posted = github.post("text", MARKER, 7, tmp_path / "kept.md")
    assert "403" in posted.problem
    assert (tmp_path / "kept.md").read_text() == f"{MARKER}\ntext"
    assert "text" in summary.read_text()


def test_an_answer_that_cannot_be_read_keeps_the_text(gh, tmp_path):
    (gh / "garbage").touch()
    posted = github.post("text", MARKER, 7, tmp_path / "kept.md")
    assert posted.problem == "gh gave an answer that could not be read"


def test_without_gh_the_text_goes_to_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    posted = github.post("text", MARKER, 7, tmp_path / "kept.md")
    assert posted.problem == "the gh command is not installed"
    assert (tmp_path / "kept.md").exists()


def test_a_network_that_does_not_answer_does_not_hold_the_verdict(gh, tmp_path, monkeypatch):
    def hang(*arguments, **options):
        raise subprocess.TimeoutExpired("gh", options["timeout"])

    monkeypatch.setattr(github.subprocess, "run", hang)
    posted = github.post("text", MARKER, 7, tmp_path / "kept.md")
    assert posted.problem == "gh did not answer within 30 s"
