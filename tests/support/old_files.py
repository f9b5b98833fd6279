"""Data files as older releases left them behind."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

DUMPS = Path(__file__).parents[1] / "dex_lite" / "data"


def write_old_file(path: Path, file_format: int) -> None:
    """A data file of this format, with a closed and an open Flow of type ``Order``."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((DUMPS / f"format_{file_format}.sql").read_text())
