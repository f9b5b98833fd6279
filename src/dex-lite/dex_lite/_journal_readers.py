"""Reading the data file beside its writer: a thread and a connection of its own for each purpose.

What is read is durable: these connections see commits only.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from dex_lite import _schema
from dex_lite._errors import EngineStoppedError, SearchTooSlowError

_Read = TypeVar("_Read")
_OPCODES_BETWEEN_LOOKS = 20_000  # about a millisecond


class Reader:
    """Queries, one after the other."""

    def __init__(self, path: str, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._path = path
        self._loop = loop
        self._thread = ThreadPoolExecutor(1, name)
        self._connection: sqlite3.Connection | None = None

    async def read(
        self, query: Callable[[sqlite3.Connection], _Read], limit_s: float | None = None
    ) -> _Read:
        """What the query returns.

        Raises:
            SearchTooSlowError: It ran longer than ``limit_s``; it was given up.
            EngineStoppedError: The journal is closed.
            DataFileCorruptError: The file is damaged.
        """

        def run() -> _Read:
            with _schema.ReadErrors(self._path):
                if self._connection is None:
                    self._connection = _schema.open_reader(self._path)
                if limit_s is None:
                    return query(self._connection)
                return self._run_within(limit_s, self._connection, query)

        try:
            future = self._loop.run_in_executor(self._thread, run)
        except RuntimeError:
            raise EngineStoppedError from None
        return await future

    def _run_within(
        self,
        limit_s: float,
        connection: sqlite3.Connection,
        query: Callable[[sqlite3.Connection], _Read],
    ) -> _Read:
        end = time.monotonic() + limit_s
        connection.set_progress_handler(lambda: time.monotonic() > end, _OPCODES_BETWEEN_LOOKS)
        try:
            return query(connection)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                raise SearchTooSlowError(limit_s) from None
            raise
        finally:
            connection.set_progress_handler(None, 0)

    def close(self) -> None:
        """Wait for the query that runs. Blocks."""
        self._thread.shutdown(wait=True)
        if self._connection is not None:
            self._connection.close()
            self._connection = None
