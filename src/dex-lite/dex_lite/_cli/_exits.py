"""Exit codes, and how a command ends that cannot do what it was asked."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from dex_lite._cli import _print
from dex_lite._errors import DexLiteError

OK = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3

HELP = (
    "Exit codes: 0 done, 1 not found or failed, 2 wrong usage, 3 the server cannot be reached. "
    "With --json, results go to stdout as JSON; errors are always one line on stderr."
)


class CommandFailed(Exception):
    """The command cannot go on; the message is one line that names the way out."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


class PlainErrors(TyperGroup):
    """A group whose commands report failure as one line, never as a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except CommandFailed as error:
            _report(error)
            raise typer.Exit(error.code) from None
        except DexLiteError as error:
            _report(error)
            raise typer.Exit(FAILED) from None


def _report(error: Exception) -> None:
    _print.note(" ".join(str(error).split()))
