"""What a running A/B shows: a live line in a terminal, plain lines elsewhere; always on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from experiments import formats
from experiments.requests import SilentListener
from levers.errors import UsageError

if TYPE_CHECKING:
    from experiments.parity_records import CheckResult
    from experiments.records import Effect, Look

ASK_ABOVE_S = 600.0
"""An estimate from which a person at a terminal is asked before the device is used."""

PLAIN_EVERY_S = 10.0
"""Where there is no terminal, a line at most this often while samples come in."""

MOST_EFFECTS = 3
"""Running effects shown on the live line."""

Ask = Callable[[str], bool]


class TerminalListener:
    """Shows stages, checks, samples and looks as they happen."""

    def __init__(self, console: Console, *, ask: Ask | None = None) -> None:
        self._console = console
        self._ask = ask
        self._live: Progress | None = None
        self._task: TaskID | None = None
        self._said_at = float("-inf")

    def on_stage(self, name: str, detail: str = "") -> None:
        """Name the stage; a measuring stage gets a live line."""
        self.close()
        self._line(f"[bold]{escape(name)}[/] {escape(detail)}".rstrip())
        if self._console.is_terminal:
            self._open(name)

    def on_estimate(self, seconds: float, pairs: int) -> None:
        """Say what it may cost, and ask where it is long and a person is there.

        Raises:
            UsageError: the person said no.
        """
        cost = f"at most {formats.count(pairs, 'pair')}, about {formats.duration(seconds)}"
        self._line(f"estimate: {cost}")
        if self._ask is None or seconds <= ASK_ABOVE_S:
            return
        self.close()
        if not self._ask(f"Measure {cost}?"):
            raise UsageError(
                "nothing was measured", cure="lower --budget or --pairs, or pass --yes"
            )

    def on_check(self, check: CheckResult) -> None:
        """One parity check with passed/total and the worst case."""
        from experiments.view.parity import check_row

        row = check_row(check)
        style = {"good": "green", "muted": "dim"}.get(row.tone, "bold red")
        more = row.detail if row.worst == "-" else row.worst
        text = f"{row.name:<12} {row.status:<16} {row.count:>9} {row.seconds:>9}  {more}"
        self._line(f"  [{style}]{escape(text.rstrip())}[/]")

    def on_sample(
        self, done: int, planned: int, effects: Sequence[Effect], seconds_left: float | None
    ) -> None:
        """Move the live line; where there is none, a plain line now and then."""
        left = "" if seconds_left is None else f", at most {formats.duration(seconds_left)} left"
        text = f"sample {done}/{planned}{left}{_running(effects)}"
        if self._live is not None and self._task is not None:
            self._live.update(self._task, total=planned, completed=done, text=escape(text))
        elif done == planned or time.monotonic() - self._said_at >= PLAIN_EVERY_S:
            self._said_at = time.monotonic()
            self._line(f"  {escape(text)}")

    def on_progress(self, text: str) -> None:
        """What goes on without a result yet: on the live line, or as a line of its own."""
        live, task = self._live, self._task
        if live is not None and task is not None:
            live.update(task, text=escape(text))
        else:
            self._line(f"  [dim]{escape(text)}[/]")

    def on_look(self, look: Look) -> None:
        """A planned look: the effects so far, with their intervals."""
        lost = f", {len(look.lost)} lost" if look.lost else ""
        shown = (
            f"{_short(effect)} {formats.effect(effect.estimate, effect.lower, effect.upper)}"
            for effect in look.effects[:MOST_EFFECTS]
        )
        text = f"  look at {formats.count(look.pairs, 'pair')}{lost}: {', '.join(shown)}"
        self._line(escape(text))

    def on_warning(self, text: str) -> None:
        """Something that a reader of the verdict must know."""
        self._line(f"[yellow]! {escape(text)}[/]")

    def close(self) -> None:
        """End the live line; safe to call twice."""
        if self._live is not None:
            self._live.stop()
        self._live = self._task = None

    def _open(self, name: str) -> None:
        self._live = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[text]}"),
            console=self._console,
            transient=True,
        )
        self._task = self._live.add_task(name, total=None, text=escape(name))
        self._live.start()

    def _line(self, text: str) -> None:
        """One line, whatever its length: cut in a terminal, whole in a log."""
        if self._console.is_terminal:
            self._console.print(text, highlight=False, no_wrap=True, overflow="ellipsis")
        else:
            self._console.print(text, highlight=False, soft_wrap=True)


class WarningsOnly(SilentListener):
    """Shows warnings, such as that the device is waited for: all else is in the JSON at the end."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def on_warning(self, text: str) -> None:
        """A line of its own, whole."""
        self._console.print(f"! {text}", markup=False, highlight=False, soft_wrap=True)


def _short(effect: Effect) -> str:
    """The last part of an axis's name: ``c8``."""
    return effect.axis.rpartition("/")[2]


def _running(effects: Sequence[Effect]) -> str:
    shown = [
        f"{_short(effect)} {formats.percent(effect.estimate)} %"
        for effect in effects[:MOST_EFFECTS]
    ]
    return f"; so far {', '.join(shown)}" if shown else ""
