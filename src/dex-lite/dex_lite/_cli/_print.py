"""Output to the terminal: tables for people, JSON for machines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from dex_lite._cli._text import as_json_text, visible

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


class _Console(Console):
    """Shows text as it is: what stands in values and names is neither markup nor a command to the terminal."""

    def render_str(self, text: str, **options: Any) -> Text:
        # Before the layout, so that a cell is as wide as what is shown.
        return super().render_str(visible(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=visible(segment.text))


def show(*parts: RenderableType) -> None:
    """Print tables, trees and lines."""
    # Made for each command: it looks at the stdout of that moment.
    is_terminal = sys.stdout.isatty()
    # A file or a pipe has no width: whole lines, which grep and the like want.
    width = None if is_terminal else _NO_WIDTH
    console = _Console(highlight=False, markup=False, emoji=False, soft_wrap=True, width=width)
    if is_terminal:
        console.print(*parts)
        return
    with console.capture() as capture:
        console.print(*parts, sep="\n")
    # Columns are as wide as their widest cell, which is of no use behind the last one.
    for text in capture.get().split("\n")[:-1]:
        print(text.rstrip(" "))


def line(text: str) -> None:
    """Print one line at once, for commands whose lines come one by one."""
    print(visible(text), flush=True)


def note(text: str) -> None:
    """Say something about the output beside it."""
    print("dex-lite:", visible(text), file=sys.stderr, flush=True)


def as_json(data: Any, *, is_line: bool = False) -> None:
    """One JSON document; with `is_line`, one line of JSON Lines."""
    print(as_json_text(data, indent=None if is_line else 2), flush=True)


def table(*columns: str, title: str = "") -> Table:
    """A table without vertical lines, so that its cells are easy to copy."""
    made = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold", header_style="bold")
    return made


def styled(status: str) -> Text:
    """A status in its colour."""
    return Text(status, style=STATUS_STYLES.get(status, ""))
