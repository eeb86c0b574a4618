"""Runs as Markdown, HTML and text, through the templates; the words come from the views.

jinja2 is imported here only. The templates compute nothing and decide nothing.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Sequence
from typing import Any

import jinja2

from experiments.view.verdict import VerdictView

DESCRIPTION_LIMIT = 8000
"""Characters that an MLflow tag, and so a description, holds; more is cut without an error."""

ICONS = {"good": "🟢", "bad": "🔴", "closed": "⚫", "open": "🟡", "void": "🟣"}
"""How a headline is coloured where text has no colour."""

Figure = tuple[str, str]
"""A caption and its SVG."""


def markdown(view: VerdictView) -> str:
    """The comment of a pull request: headline, deciding axes, parity, details folded."""
    return _markdown(view, full=True)


def description(view: VerdictView, limit: int = DESCRIPTION_LIMIT) -> str:
    """The description of an MLflow run: the comment without its details, never above the limit.

    Should the tables not fit, the headline and the reason stay, since they carry the verdict.
    """
    text = _markdown(view, full=False)
    if len(text) <= limit:
        return text
    pointer = "\n\nCut here; the whole report is among the artifacts of this run.\n"
    kept = text[: limit - len(pointer)]
    return kept[: kept.rindex("\n")] + pointer


def html(view: VerdictView, figures: Sequence[Figure] = ()) -> str:
    """A self-contained page: inline style and SVG, no script, nothing loaded from elsewhere."""
    return filled_html("report.html.j2", figures, v=view)


def filled_html(template: str, figures: Sequence[Figure], **values: Any) -> str:
    """A page of the package with these values and figures."""
    drawn = [(caption, _inline(svg)) for caption, svg in figures]
    return _environment().get_template(template).render(figures=drawn, **values)


def filled(template: str, **values: Any) -> str:
    """A template of the package with these values; blank lines are never more than one."""
    text = _environment().get_template(template).render(**values)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def comment_marker(lever: str, scope: str) -> str:
    """The invisible line by which the one comment of a lever and scope is found again."""
    return f"<!-- levergate {lever} {re.sub('-{2,}', '-', scope)} -->"


def _markdown(view: VerdictView, *, full: bool) -> str:
    return filled(
        "verdict.md.j2",
        v=view,
        full=full,
        icon=ICONS[view.tone],
        pointer="The whole report is among the artifacts.",
    )


def _inline(svg: str) -> str:
    """An SVG without its XML prologue, which has no place inside HTML.

    Raises:
        ValueError: the text holds no SVG, or a script.
    """
    start = svg.find("<svg")
    if start < 0 or "<script" in svg.lower():
        raise ValueError("a figure is an SVG without scripts")
    return svg[start:]


@functools.cache
def _environment() -> jinja2.Environment:
    folder = importlib.resources.files("templates")
    env = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
        undefined=jinja2.StrictUndefined,
    )
    env.filters |= {"line": _line, "cell": _cell, "code": _code, "fence": _fence}
    return env


def _line(text: Any) -> str:
    """Text on one line of Markdown, with HTML in it shown and not obeyed."""
    return " ".join(str(text).split()).replace("&", "&amp;").replace("<", "&lt;")


def _cell(text: Any) -> str:
    """Text in a table's cell."""
    return _line(text).replace("|", "\\|")


def _code(text: Any) -> str:
    """Text inside backticks."""
    return " ".join(str(text).split()).replace("`", "'")


def _fence(text: Any) -> str:
    """Text inside a fenced block."""
    return str(text).replace("```", "'''")
