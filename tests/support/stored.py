"""Everything that a session leaves on disk, as bytes that can be searched."""

from __future__ import annotations

import contextlib
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path


def holders_of(text: str, folder: Path) -> list[str]:
    """Files below ``folder`` that hold a text, plain or inside what the core compressed."""
    wanted = text.encode()
    return [
        str(path.relative_to(folder))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and any(wanted in data for data in _contents(path))
    ]


def _contents(path: Path) -> Iterator[bytes]:
    raw = path.read_bytes()
    yield raw
    if raw.startswith(b"SQLite format 3\0"):
        # A value may lie in several pages, so it is read through SQLite.
        with sqlite3.connect(path) as connection:
            for cell in _cells(connection):
                yield cell
                yield from _inflated(cell)
    else:
        yield from _inflated(raw)


def _cells(connection: sqlite3.Connection) -> Iterator[bytes]:
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (table,) in tables:
        for row in connection.execute(f'SELECT * FROM "{table}"'):
            for cell in row:
                if isinstance(cell, (bytes, str)):
                    yield cell if isinstance(cell, bytes) else cell.encode()


def _inflated(data: bytes) -> Iterator[bytes]:
    # The core's mark of a compressed value, and the header that zlib gives it.
    place = data.find(b"\x02\x78\x01")
    while place >= 0:
        with contextlib.suppress(zlib.error):
            yield zlib.decompressobj().decompress(data[place + 1 :])
        place = data.find(b"\x02\x78\x01", place + 1)
