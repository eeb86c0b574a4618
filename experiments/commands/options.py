"""Options that several commands take."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON object with a versioned schema.")
]
Run: TypeAlias = Annotated[str, typer.Argument(help="A run's id, or a beginning of it.")]
Lever: TypeAlias = Annotated[str, typer.Argument(help="A lever's name (see list).")]
DetailedExit: TypeAlias = Annotated[
    bool, typer.Option("--detailed-exitcode", help="10 for gated-OFF and 11 for terminal.")
]
Expect: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="VERDICT", help="For gates: exit with 5 where another verdict came."),
]
TokensOn: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODEL[,LEVER=SETTING]",
        help="Compare tokens with this model in place of the timed one; repeatable.",
    ),
]
