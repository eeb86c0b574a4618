"""The command line: parse, call one pipeline function, print, exit code.

Starts at once: neither torch nor mlflow, scipy, pydantic or sqlalchemy is imported for ``--help``.
"""

from __future__ import annotations

import atexit
import errno
import gc
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import typer

from experiments.commands.output import JSON_SCHEMA_VERSION
from experiments.exit_codes import Exit
from levers.errors import LevergateError, UsageError

HELP = "Measure a performance lever against its reference and say whether it may ship ON."

COMMANDS = {
    "ab": "ab:ab",
    "show": "look:show",
    "history": "look:history",
    "list": "look:list_",
    "pr": "look:pr",
    "calibrate": "calibrate:calibrate",
    "plan": "plan:plan",
    "stack": "stack:stack",
    "campaign": "campaign:campaign",
    "roofline": "roofline:roofline",
    "invalidate": "marks:invalidate",
    "override": "marks:override",
    "replay": "store:replay",
    "export": "store:export",
    "import": "store:import_",
    "sync": "store:sync",
    "ui": "store:ui",
    "selftest": "selftest:selftest",
    "policy": "policy:policy",
}
"""The commands in the order of ``--help``: ``module:function`` below ``experiments.commands``."""


NO_PLUGINS = ("PYDANTIC_DISABLE_PLUGINS", "__all__")
"""Our records need none, and pydantic would read all installed packages to look for them."""


GARBAGE_FROM = 50_000
"""New objects from which garbage is looked for. What start-up makes lives to the end: a tenth of
the time of ``show`` was spent on finding no garbage among it, every 700 objects."""


def application(words: Sequence[str] = ()) -> typer.Typer:
    """The command line; of the command that the words name alone, to start without the others."""
    app = typer.Typer(
        name="levergate",
        help=HELP,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_all)
    for name in words[:1] if words and words[0] in COMMANDS else COMMANDS:
        module, function = COMMANDS[name].split(":")
        found = getattr(importlib.import_module(f"experiments.commands.{module}"), function)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    return app


def _all() -> None:
    """Keep one command a command of its name, where typer would take it for the whole program."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; the one place that catches everything."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        _be_the_process()
    try:
        _stand()
        return _invoke(words)
    except LevergateError as error:
        code = Exit.USAGE if isinstance(error, UsageError) else Exit.INTERNAL
        return _report(words, code, type(error).__name__, error.message, error.cure)
    except (KeyboardInterrupt, typer.Abort) as stopped:
        cure = "what was reported is on disk; go on with --resume (levergate history has the run)"
        said = str(stopped)  # an interrupted measurement names itself and how to go on
        return _report(
            words, Exit.INTERRUPTED, "Interrupted", said or "interrupted", "" if said else cure
        )
    except BrokenPipeError:
        # The reader (a pager, head) has gone; the interpreter must not flush into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.VERDICT
    except Exception as error:  # noqa: BLE001 - the process boundary: never a traceback to a user
        return _unexpected(words, error)


def _be_the_process() -> None:
    """Set what holds for the whole process: being ended is being interrupted, and a quick start."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ.setdefault(*NO_PLUGINS)
    gc.set_threshold(GARBAGE_FROM)
    atexit.register(gc.freeze)  # the interpreter's last look for garbage then has nothing to do


def _stand() -> None:
    """Refuse to start in a folder that is gone, where no relative path means anything.

    Raises:
        UsageError: it is gone.
    """
    try:
        Path.cwd()
    except OSError as error:
        raise UsageError("the current folder is gone", cure="go to one that is there") from error


def _invoke(words: list[str]) -> int:
    """Parse and run one command; its errors are left to the caller, typer handles none."""
    group = typer.main.get_command(application(words))
    try:
        with group.make_context("levergate", list(words) or ["--help"]) as context:
            return int(group.invoke(context) or 0)
    except typer.Exit as asked:  # --help
        return int(asked.exit_code) if words else Exit.USAGE


def _unexpected(words: Sequence[str], error: Exception) -> int:
    """A usage error of the parser, or an error of ours whose traceback goes to a log."""
    explain = getattr(error, "format_message", None)
    if explain is not None:
        context = getattr(error, "ctx", None)
        asked = context.command_path if context else _named(words)
        cure = f"see {asked} --help" if explain() else ""
        return _report(words, Exit.USAGE, "UsageError", explain().rstrip("."), cure)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return _report(words, Exit.INTERNAL, "DiskFull", str(error), "free space and try again")
    message = f"internal error: {type(error).__name__}: {error}"
    return _report(words, Exit.INTERNAL, "InternalError", message, f"its log is {_log(words)}")


def _named(words: Sequence[str]) -> str:
    """The command that the words name; an option that lacks its argument says no command."""
    found: list[str] = []
    group: object = typer.main.get_command(application(words))
    for word in words:
        group = getattr(group, "commands", {}).get(word)
        if group is None:
            break
        found.append(word)
    return " ".join(["levergate", *found])


def _report(words: Sequence[str], code: Exit, kind: str, message: str, cure: str) -> int:
    """Say it on one line of stderr; as JSON where JSON was asked for."""
    if "--json" in words:
        error = {"kind": kind, "message": message, "cure": cure, "exit_code": int(code)}
        command = words[0] if words and not words[0].startswith("-") else ""
        answer = {"schema_version": JSON_SCHEMA_VERSION, "command": command, "error": error}
        print(json.dumps(answer, ensure_ascii=False), file=sys.stderr)
    elif message:
        line = " ".join(f"{message}{f'; {cure}' if cure else ''}".split())
        print(f"levergate: {line}", file=sys.stderr)
    return code


def _log(words: Sequence[str]) -> Path:
    """Write the current traceback where it can be found again."""
    from experiments import home

    text = f"levergate {' '.join(words)}\n\n{traceback.format_exc()}"
    name = f"error-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.log"
    for folder in (home.find(os.environ, Path.cwd()).root / "logs", Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        except OSError:
            continue
        return folder / name
    print(text, file=sys.stderr)
    return Path(os.devnull)


if __name__ == "__main__":
    sys.exit(main())
