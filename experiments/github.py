"""Post a verdict to a pull request through the ``gh`` command: one marked comment, updated.

A token that may not write is common (a pull request from a fork) and is no reason to fail a job:
the text then goes to a file and to the job's summary, and the exit code stays what it was.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 30.0
"""A network that does not answer must not hold a finished verdict."""


@dataclass(frozen=True, slots=True)
class Posted:
    """Where the text went; ``problem`` says why it is not on the pull request."""

    url: str = ""
    updated: bool = False
    file: str = ""
    problem: str = ""


def post(body: str, marker: str, number: int, fallback: Path) -> Posted:
    """Create or update the marked comment, or leave the text in ``fallback``."""
    text = f"{marker}\n{body}"
    if shutil.which("gh") is None:
        return _keep(text, fallback, "the gh command is not installed")
    try:
        comment = _find(marker, number)
        target = (
            f"repos/{{owner}}/{{repo}}/issues/comments/{comment}"
            if comment
            else f"repos/{{owner}}/{{repo}}/issues/{number}/comments"
        )
        method = "PATCH" if comment else "POST"
        answer = _gh(["api", "-X", method, target, "--input", "-"], json.dumps({"body": text}))
        return Posted(url=str(json.loads(answer)["html_url"]), updated=bool(comment))
    except subprocess.TimeoutExpired:
        return _keep(text, fallback, f"gh did not answer within {TIMEOUT_S:.0f} s")
    except subprocess.CalledProcessError as error:
        return _keep(text, fallback, " ".join(str(error.stderr).split()) or "gh failed")
    except (ValueError, KeyError, TypeError):
        return _keep(text, fallback, "gh gave an answer that could not be read")


def _find(marker: str, number: int) -> int | None:
    """The id of our comment on that pull request, if there is one."""
    path = f"repos/{{owner}}/{{repo}}/issues/{number}/comments"
    # One JSON object a line, whatever the number of pages.
    lines = _gh(["api", "--paginate", path, "--jq", ".[] | {id, body} | tojson"]).splitlines()
    for comment in (json.loads(line) for line in lines if line.strip()):
        if str(comment["body"]).startswith(marker):
            return int(comment["id"])
    return None


def _gh(arguments: list[str], stdin: str | None = None) -> str:
    done = subprocess.run(
        ["gh", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    return done.stdout


def _keep(text: str, fallback: Path, problem: str) -> Posted:
    fallback.write_text(text, encoding="utf-8")
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        with Path(summary).open("a", encoding="utf-8") as stream:
            stream.write(f"{text}\n")
    return Posted(file=str(fallback), problem=problem)
