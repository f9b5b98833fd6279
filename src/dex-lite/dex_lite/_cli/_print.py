"""Output to the terminal: tables for people, JSON for machines."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_NO_WIDTH = 10_000
STATUS_STYLES = {
    "running": "cyan",
    "waiting": "cyan",
    "queued": "cyan",
    "completed": "green",
    "failed": "red",
    "retrying": "yellow",
    "terminated": "magenta",
    "canceled": "magenta",
    "dropped": "bright_black",
}


def console() -> Console:
    """Made for each command: it looks at the stdout of that moment."""
    # A file or a pipe has no width: whole lines, which grep and the like want.
    width = None if sys.stdout.isatty() else _NO_WIDTH
    return Console(highlight=False, soft_wrap=True, width=width)


def as_json(data: Any, *, is_line: bool = False) -> None:
    """One JSON document; with `is_line`, one line of JSON Lines."""
    indent = None if is_line else 2
    print(json.dumps(data, indent=indent, ensure_ascii=False, default=str), flush=True)


def table(*columns: str, title: str = "") -> Table:
    """A table without vertical lines, so that its cells are easy to copy."""
    made = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold", header_style="bold")
    return made


def styled(status: str) -> Text:
    """A status in its colour."""
    return Text(status, style=STATUS_STYLES.get(status, ""))
