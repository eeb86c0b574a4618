"""All that is written of a decided run: page, Markdown, figures, MLflow's description."""

from __future__ import annotations

from experiments import plots, render
from experiments.requests import Standing
from experiments.run_record import RunRecord
from experiments.tracking.artifacts import Rendered
from experiments.view.verdict import view


def page(record: RunRecord, standing: Standing) -> str:
    """The self-contained HTML page with its figures."""
    drawn = plots.plots(record)
    return render.html(view(record, standing), [(one.caption, one.svg) for one in drawn])


def rendered(record: RunRecord, standing: Standing) -> Rendered:
    """The artifacts of a run by path, and the Markdown of its MLflow page."""
    shown = view(record, standing)
    drawn = plots.plots(record)
    files: dict[str, bytes | str] = dict(plots.files(drawn))
    files["report.html"] = render.html(shown, [(one.caption, one.svg) for one in drawn])
    files["verdict.md"] = render.markdown(shown)
    return files, render.description(shown)
