"""The data file: group commit by one writer thread, reads by a second connection.

A batch is everything that was submitted while the previous commit ran; there is no timer. The loop
hears of each commit once and then releases the actions that waited for it. After a failed commit
nothing is ever released again.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TypeVar

from dex_lite import _journal_sql, _schema
from dex_lite._errors import DataFileReplacedError, DataFileWriteError
from dex_lite._in_place import FilesInPlace
from dex_lite._journal_readers import Reader
from dex_lite._lockfile import LockFile
from dex_lite._records import (
    AddFacts,
    AddStreamMessage,
    DropRun,
    DropSecrets,
    PutIndexTypes,
    PutRun,
    PutSecret,
    PutSnapshot,
    PutStreamGroup,
    RunRow,
    StoredRun,
    TrimStream,
    Write,
)
from dex_lite._schema import Durability

__all__ = [
    "AddFacts",
    "AddStreamMessage",
    "DropRun",
    "DropSecrets",
    "Journal",
    "PutIndexTypes",
    "PutRun",
    "PutSecret",
    "PutSnapshot",
    "PutStreamGroup",
    "RunRow",
    "StoredRun",
    "TrimStream",
    "Write",
]

_LOGGER = logging.getLogger("dex_lite")
_Read = TypeVar("_Read")
# Commit number of writes that were dropped: larger than any real one, so it never becomes durable.
_NEVER = 1 << 62
# The writer checkpoints after this long without work, if the log has grown enough to be worth it.
_IDLE_BEFORE_CHECKPOINT_S = 0.2
_BYTES_WORTH_A_CHECKPOINT = 512 << 10
# So long what was removed for good stays in the log of an engine that is never idle.
_LONGEST_IN_LOG_S = 5.0


class Journal:
    """The open data file.

    `open` and the methods marked "blocks" are for the start; the others belong to the loop and
    never wait.
    """

    def __init__(
        self,
        path: str,
        lock_file: LockFile,
        connection: sqlite3.Connection,
        loop: asyncio.AbstractEventLoop,
        on_failed: Callable[[BaseException], None],
        on_commit: Callable[[float, int], None] | None = None,
        *,
        is_log_left: bool = False,
    ) -> None:
        self.path = path
        self._on_commit = on_commit
        self.boots = _schema.boots(connection)
        self._lock_file = lock_file
        self._connection = connection
        self._batches = _journal_sql.BatchWriter(connection)
        self._files = FilesInPlace(path)
        # A process that was killed may have removed what is still in its log.
        self._batches.has_removed = is_log_left
        self._cut_at = time.monotonic()
        self._loop = loop
        self._on_failed = on_failed
        # Shared with the writer thread, under the mutex.
        self._mutex = threading.Lock()
        self._open_batch: list[Write] = []
        self._open_number = 1
        self._is_writer_asleep = False
        self._is_closing = False
        self._is_failed = False
        # A binary semaphore on which the writer sleeps; whoever clears `_is_writer_asleep` releases
        # it.
        self._gate = threading.Lock()
        self._gate.acquire()
        # Loop only.
        self._durable = 0
        self._actions: dict[int, list[Callable[[], None]]] = {}
        self._reader = Reader(path, "dex-lite-reader", loop)
        # Apart from the others, so that a slow search holds up no history.
        self._searcher = Reader(path, "dex-lite-searcher", loop)
        # A daemon, so that a program that forgets to close its engine can still end.
        self._writer = threading.Thread(
            target=self._write_loop, name="dex-lite-writer", daemon=True
        )
        self._writer.start()

    @classmethod
    def open(
        cls,
        path: str,
        *,
        durability: Durability = "full",
        loop: asyncio.AbstractEventLoop,
        on_failed: Callable[[BaseException], None],
        on_commit: Callable[[float, int], None] | None = None,
        address: str = "",
        connect: _schema.Connect = sqlite3.connect,
    ) -> Journal:
        """Lock, check and open the file; raises the named errors of `_errors.py`. Blocks.

        `on_commit` hears in the writer thread how many seconds a commit took and its writes.
        """
        if durability not in ("full", "normal"):
            raise ValueError(f"durability must be 'full' or 'normal', not {durability!r}")
        full_path = _schema.resolve(path)
        lock_file = LockFile(full_path, address)
        try:
            _schema.prepare(full_path, connect)
            is_log_left = _schema.has_log(full_path)
            connection = _schema.open_writer(full_path, durability, connect)
            return cls(
                full_path,
                lock_file,
                connection,
                loop,
                on_failed,
                on_commit,
                is_log_left=is_log_left,
            )
        except BaseException:
            lock_file.release()
            raise

    def set_address(self, address: str) -> None:
        """Say where this engine serves, for the message that a second engine on the file gets."""
        self._lock_file.set_address(address)

    def submit(self, writes: Sequence[Write]) -> int:
        """Join the open batch and return its commit number; the writes of one call are atomic.

        Without writes it is the number after which everything submitted so far is durable. After a
        failure or `close` the writes are dropped and the number never becomes durable.
        """
        with self._mutex:
            if self._is_failed or self._is_closing:
                return _NEVER
            if not writes:
                return self._open_number if self._open_batch else self._open_number - 1
            self._open_batch.extend(writes)
            number = self._open_number
            is_wake_needed, self._is_writer_asleep = self._is_writer_asleep, False
        if is_wake_needed:
            # Not at once: what the rest of this turn of the loop submits shares the commit.
            self._loop.call_soon(self._gate.release)
        return number

    @property
    def durable(self) -> int:
        """The last commit number on disk that the loop has been told of."""
        return self._durable

    def when_durable(self, commit: int, action: Callable[[], None]) -> None:
        """Call `action` after this commit: now if it is durable, else in order of commit, then of
        call.
        """
        if commit <= self._durable:
            if not self._is_failed:
                action()
        elif commit < _NEVER:
            self._actions.setdefault(commit, []).append(action)

    def _committed(self, number: int) -> None:
        self._durable = number
        for action in self._actions.pop(number, ()):
            try:
                action()
            except Exception:
                # The others must not suffer: they are answers to other calls.
                _LOGGER.exception("an action after commit %d failed", number)

    def _failed(self, error: BaseException) -> None:
        self._actions.clear()
        if not isinstance(error, DataFileWriteError):
            reason = DataFileWriteError(self.path, str(error))
            reason.__cause__ = error
            error = reason
        self._on_failed(error)

    async def close(self) -> None:
        """Commit what is open, checkpoint, mark a clean stop and give the file free."""
        with self._mutex:
            self._is_closing = True
            is_wake_needed, self._is_writer_asleep = self._is_writer_asleep, False
        if is_wake_needed:
            self._gate.release()
        # Its last messages to the loop come before the end of this wait, so the last batch still
        # has its actions run.
        await self._loop.run_in_executor(None, self._writer.join)
        self._reader.close()
        self._searcher.close()
        self._lock_file.release()

    # The writer thread.

    def _write_loop(self) -> None:
        unmerged = 0
        while True:
            batch: list[Write] = []
            number = 0
            with self._mutex:
                if self._open_batch:
                    batch, self._open_batch = self._open_batch, batch
                    number = self._open_number
                    self._open_number += 1
                elif self._is_closing:
                    break
                else:
                    self._is_writer_asleep = True
            if not batch:
                is_worth_it = unmerged > _BYTES_WORTH_A_CHECKPOINT or self._batches.has_removed
                if not self._sleep(_IDLE_BEFORE_CHECKPOINT_S if is_worth_it else -1):
                    if self._batches.has_removed:
                        self._cut_log()
                    else:
                        self._checkpoint("PASSIVE")
                    unmerged = 0
                continue
            try:
                started = time.perf_counter()
                self._files.check()  # nothing is written into a file that another engine may serve
                unmerged += self._batches.commit(batch)
                self._files.check()  # nothing is acknowledged that cannot be found again
                if self._on_commit is not None:
                    self._on_commit(time.perf_counter() - started, len(batch))
            except BaseException as error:
                with self._mutex:
                    self._is_failed = True
                    self._open_batch = []
                self._tell(self._failed, error)
                break
            if not self._tell(self._committed, number):
                break
            if self._batches.has_removed and time.monotonic() - self._cut_at > _LONGEST_IN_LOG_S:
                self._cut_log()
        self._finish()

    def _sleep(self, timeout_s: float) -> bool:
        """Wait until there may be work; False if the time ran out first."""
        if self._gate.acquire(timeout=timeout_s):
            return True
        with self._mutex:
            if self._is_writer_asleep:
                self._is_writer_asleep = False
                return False
        # Somebody woke us in that very moment; the release is on its way.
        self._gate.acquire()
        return True

    def _tell(self, target: Callable[..., None], argument: object) -> bool:
        try:
            self._loop.call_soon_threadsafe(target, argument)
        except RuntimeError:  # the loop is closed, and the journal is not
            return False
        return True

    def _cut_log(self) -> None:
        """What was removed for good is still in the log until then. A reader in the way makes it wait."""
        self._cut_at = time.monotonic()
        if self._checkpoint("TRUNCATE"):
            self._batches.has_removed = False

    def _checkpoint(self, mode: str) -> bool:
        """Whether it was done whole. Commits never wait for a reader that is in its way."""
        try:
            with _schema.without_waiting(self._connection):
                row = self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
            return bool(row[0] == 0)
        except sqlite3.Error as error:
            # Nothing is lost, the log has it all. If the disk is the reason, the next commit stops
            # the engine.
            _LOGGER.warning("checkpoint of %s failed: %s", self.path, error)
            return False

    def _finish(self) -> None:
        try:
            with closing(self._connection):
                if not self._is_failed:
                    self._files.check()
                    _schema.mark_clean_stop(self._connection)
                    self._checkpoint("TRUNCATE")
        except (sqlite3.Error, DataFileReplacedError) as error:
            _LOGGER.warning("closing %s failed: %s", self.path, error)

    # Reading. What is read is durable: the second connection sees commits only.

    def open_runs(self) -> Iterator[StoredRun]:
        """Runs without an end, oldest first. Blocks."""
        with self._read_errors(), closing(_schema.open_reader(self.path)) as connection:
            yield from _journal_sql.open_runs(connection)

    def latest_runs(self) -> Iterator[RunRow]:
        """The newest run of every Flow id, ended ones included. Blocks."""
        with self._read_errors(), closing(_schema.open_reader(self.path)) as connection:
            yield from _journal_sql.latest_runs(connection)

    def index_types(self) -> dict[str, int]:
        """Blocks."""
        with self._read_errors(), closing(_schema.open_reader(self.path)) as connection:
            return _journal_sql.index_types(connection)

    def are_indexes_filled(self) -> bool:
        """Whether every closed run is in every Attribute index. Blocks."""
        with self._read_errors(), closing(_schema.open_reader(self.path)) as connection:
            return _schema.are_indexes_filled(connection)

    def stream_contents(self) -> tuple[list[PutStreamGroup], list[tuple[int, int, str, int]]]:
        """Groups, and sequence, group, Flow id and size of every message, oldest first.

        For StreamLog. Blocks.
        """
        with self._read_errors(), closing(_schema.open_reader(self.path)) as connection:
            return _journal_sql.stream_groups(connection), _journal_sql.stream_index(connection)

    async def facts(self, run_id: str, first_number: int, limit: int) -> list[tuple[int, bytes]]:
        """Durable facts of one run from a number on."""
        return await self._reader.read(
            lambda connection: _journal_sql.facts(connection, run_id, first_number, limit)
        )

    async def run(self, run_id: str) -> RunRow | None:
        """The durable row of one run."""
        return await self._reader.read(lambda connection: _journal_sql.run(connection, run_id))

    async def closed_before(self, at_ms: int, limit: int) -> list[RunRow]:
        """Durable rows of runs that closed before a time, in the order in which they closed."""
        return await self._reader.read(
            lambda connection: _journal_sql.closed_before(connection, at_ms, limit)
        )

    async def secrets(self, run_id: str) -> dict[str, bytes]:
        """Durable values of a run's hard-delete Attributes."""
        return await self._reader.read(lambda connection: _journal_sql.secrets(connection, run_id))

    async def stream_messages(self, sequences: Sequence[int]) -> dict[int, tuple[int, str, bytes]]:
        """Time, source and value of durable messages by sequence. For StreamLog."""
        return await self._reader.read(
            lambda connection: _journal_sql.stream_messages(connection, sequences)
        )

    async def closed_runs(self, after: int, limit: int) -> list[tuple[int, RunRow]]:
        """Closed runs with their keys, oldest first, from a key on."""
        return await self._reader.read(
            lambda connection: _journal_sql.closed_rows(connection, after, limit)
        )

    async def runs_of(self, flow_id: str) -> list[RunRow]:
        """All runs of a Flow ID, oldest first."""
        return await self._reader.read(lambda connection: _journal_sql.runs_of(connection, flow_id))

    async def search(self, query: Callable[[sqlite3.Connection], _Read], limit_s: float) -> _Read:
        """Run a search on a connection of its own; raises SearchTooSlowError after ``limit_s``."""
        return await self._searcher.read(query, limit_s)

    def _read_errors(self) -> _schema.ReadErrors:
        return _schema.ReadErrors(self.path)
