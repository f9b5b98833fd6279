"""The SQL of the journal: a batch of writes as few statements, and the queries of its readers."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from dex_lite._records import (
    AddFacts,
    AddStreamMessage,
    DropIndexed,
    DropRun,
    DropSecrets,
    PutIndexed,
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

# Rows of one INSERT. Every statement hands the GIL over twice, and a busy loop gives it back late:
# few statements matter more than small ones.
_ROWS_PER_INSERT = 64
_INDEXED_SIZE = 512
_SET_FILLED = "INSERT OR REPLACE INTO meta VALUES ('indexes_filled', ?)"
NUMBER_BITS = 32
NUMBER_MASK = (1 << NUMBER_BITS) - 1
_SECRETS = "SELECT attribute, value FROM secrets WHERE run = ?"
_DROP_SECRETS = "DELETE FROM secrets WHERE run = (SELECT id FROM runs WHERE run_id = ?)"
_RUN_COLUMNS = (
    "run_id, flow_id, flow_type, status, run_attempt, request_id, first_run_id, start_ms, close_ms"
)


class BatchWriter:
    """Turns batches into transactions on the one writing connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.has_removed = False  # something that must not be found in the log any more
        self._keys: dict[str, int] = {}
        # The most of a row that SQLite keeps outside of pages of its own is a little less.
        self._filler = connection.execute("PRAGMA page_size").fetchone()[0] // 4
        newest = connection.execute("SELECT coalesce(max(id), 0) FROM runs").fetchone()
        self._next_key: int = newest[0] + 1

    def commit(self, batch: Sequence[Write]) -> int:
        """Write one batch as one transaction; returns about how many bytes the log grew by."""
        statements: list[tuple[str, Sequence[Any]]] = []
        facts: list[Any] = []
        messages: list[Any] = []
        trimmed: list[int] = []
        closed: list[str] = []
        dropped: set[str] = set()
        size = 0
        is_secret = False
        for write in batch:
            if isinstance(write, AddFacts):
                number = (self._key(write.run_id) << NUMBER_BITS) + write.first_number
                for payload in write.payloads:
                    facts += (number, payload)
                    number += 1
                    size += len(payload)
            elif isinstance(write, AddStreamMessage):
                messages += msgspec.structs.astuple(write)
                size += len(write.value)
            elif isinstance(write, PutRun):
                key = self._key(write.row.run_id, is_new_allowed=True)
                row = (key, *msgspec.structs.astuple(write.row))
                statements.append(
                    ("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
                )
                if write.row.close_ms is not None:
                    closed.append(write.row.run_id)
            elif isinstance(write, PutSnapshot):
                statements.append(
                    (
                        "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?)",
                        (self._key(write.run_id), write.number, write.payload),
                    )
                )
                size += len(write.payload)
            elif isinstance(write, DropRun):
                statements += self._drop(write.run_id)
                dropped.add(write.run_id)
                is_secret = True
            elif isinstance(write, PutSecret):
                statements.append(self._secret(write))
                size += len(write.value or b"")
                is_secret = True
            elif isinstance(write, DropSecrets):
                statements.append((_DROP_SECRETS, (write.run_id,)))
                # Those that this batch itself has put there make it one with secrets, too.
                is_secret = is_secret or self._has_secrets(write.run_id)
            elif isinstance(write, TrimStream):
                trimmed += write.sequences
            elif isinstance(write, PutStreamGroup):
                statements.append(
                    (
                        "INSERT OR REPLACE INTO stream_groups VALUES (?, ?, ?, ?)",
                        msgspec.structs.astuple(write),
                    )
                )
            elif isinstance(write, PutIndexed | DropIndexed):
                # Filling a new index may come too late for a run that is not kept any more.
                if write.run_id not in dropped and self._is_known(write.run_id):
                    statements += self._indexed(write)
                    size += _INDEXED_SIZE
            elif isinstance(write, PutIndexTypes):
                for item in write.types.items():
                    statements.append(("INSERT OR REPLACE INTO index_types VALUES (?, ?)", item))
                statements.append((_SET_FILLED, (0,)))
            else:
                statements.append((_SET_FILLED, (1,)))
        statements += _inserts("facts", 2, facts)
        statements += _inserts("stream_messages", 6, messages)
        # Last: a message may have been added and trimmed in the same batch.
        statements += _deletes(trimmed)
        if is_secret:
            self._run_overwriting(statements)
        else:
            self._run(statements)
        for run_id in closed:
            # Facts after the close are rare, and closed runs are many: look the key up again then.
            self._keys.pop(run_id, None)
        return size + 4096 * (1 + len(statements))

    def _drop(self, run_id: str) -> Iterator[tuple[str, Sequence[Any]]]:
        key = self._key(run_id)
        self._keys.pop(run_id)
        first = key << NUMBER_BITS
        yield "DELETE FROM facts WHERE id BETWEEN ? AND ?", (first, first + NUMBER_MASK)
        for table in ("snapshots", "index_terms", "indexed_attributes", "secrets"):
            yield f"DELETE FROM {table} WHERE run = ?", (key,)
        yield "DELETE FROM runs WHERE id = ?", (key,)

    def _secret(self, write: PutSecret) -> tuple[str, Sequence[Any]]:
        key = self._key(write.run_id)
        if write.value is None:
            return "DELETE FROM secrets WHERE run = ? AND attribute = ?", (key, write.attribute)
        row = (key, write.attribute, self._filler, write.value)
        return "INSERT OR REPLACE INTO secrets VALUES (?, ?, zeroblob(?), ?)", row

    def _has_secrets(self, run_id: str) -> bool:
        return bool(secrets(self._connection, run_id))

    def _is_known(self, run_id: str) -> bool:
        try:
            self._key(run_id)
        except LookupError:
            return False
        return True

    def _indexed(self, write: PutIndexed | DropIndexed) -> Iterator[tuple[str, Sequence[Any]]]:
        key = self._key(write.run_id)
        of_it = (key, write.attribute)
        yield "DELETE FROM index_terms WHERE run = ? AND attribute = ?", of_it
        yield "DELETE FROM indexed_attributes WHERE run = ? AND attribute = ?", of_it
        if isinstance(write, DropIndexed):
            return
        row = (key, write.attribute, write.name, write.value)
        yield "INSERT INTO indexed_attributes VALUES (?, ?, ?, ?)", row
        terms: list[Any] = []
        for term in write.terms:
            terms += (write.name, term, key, write.attribute)
        yield from _inserts("index_terms", 4, terms)

    def _run_overwriting(self, statements: list[tuple[str, Sequence[Any]]]) -> None:
        """Run them so that what they delete is overwritten."""
        self.has_removed = True
        self._connection.execute("PRAGMA secure_delete = ON").fetchone()
        try:
            self._run(statements)
        finally:
            self._connection.execute("PRAGMA secure_delete = OFF").fetchone()

    def _run(self, statements: list[tuple[str, Sequence[Any]]]) -> None:
        execute = self._connection.execute
        if len(statements) == 1:
            # One statement outside a transaction is a transaction: the usual commit of a Step is a
            # single call.
            execute(*statements[0])
            return
        execute("BEGIN IMMEDIATE")
        try:
            for sql, parameters in statements:
                execute(sql, parameters)
            execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                execute("ROLLBACK")
            raise

    def _key(self, run_id: str, is_new_allowed: bool = False) -> int:
        key = self._keys.get(run_id)
        if key is None:
            row = self._connection.execute(
                "SELECT id FROM runs WHERE run_id = ?", (run_id,)
            ).fetchone()
            if row is not None:
                key = int(row[0])
            elif is_new_allowed:
                key = self._next_key
                self._next_key += 1
            else:
                raise LookupError(f"a write for run {run_id} came before the row of that run")
            self._keys[run_id] = key
        return key


def _inserts(table: str, columns: int, values: list[Any]) -> Iterator[tuple[str, Sequence[Any]]]:
    row = f"({', '.join('?' * columns)})"
    step = columns * _ROWS_PER_INSERT
    for start in range(0, len(values), step):
        part = values[start : start + step]
        yield f"INSERT INTO {table} VALUES {', '.join([row] * (len(part) // columns))}", part


def _deletes(sequences: list[int]) -> Iterator[tuple[str, Sequence[Any]]]:
    for start in range(0, len(sequences), 512):
        part = sequences[start : start + 512]
        yield f"DELETE FROM stream_messages WHERE sequence IN ({_marks(part)})", part


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _rows(
    connection: sqlite3.Connection, where: str, parameters: Sequence[Any] = ()
) -> Iterator[tuple[int, RunRow]]:
    for key, *fields in connection.execute(
        f"SELECT id, {_RUN_COLUMNS} FROM runs {where}", parameters
    ):
        yield key, RunRow(*fields)


def _facts(
    connection: sqlite3.Connection, key: int, first_number: int, limit: int
) -> list[tuple[int, bytes]]:
    start = key << NUMBER_BITS
    rows = connection.execute(
        "SELECT id, payload FROM facts WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?",
        (start + first_number, start + NUMBER_MASK, limit),
    )
    return [(number & NUMBER_MASK, payload) for number, payload in rows]


def open_runs(connection: sqlite3.Connection) -> Iterator[StoredRun]:
    for key, row in _rows(connection, "WHERE close_ms IS NULL ORDER BY id"):
        snapshot = connection.execute(
            "SELECT number, payload FROM snapshots WHERE run = ?", (key,)
        ).fetchone()
        first = 0 if snapshot is None else snapshot[0] + 1
        secret = dict(connection.execute(_SECRETS, (key,)).fetchall())
        yield StoredRun(row, snapshot, _facts(connection, key, first, -1), secret)


def secrets(connection: sqlite3.Connection, run_id: str) -> dict[str, bytes]:
    key = connection.execute("SELECT id FROM runs WHERE run_id = ?", (run_id,)).fetchone()
    return {} if key is None else dict(connection.execute(_SECRETS, key).fetchall())


def latest_runs(connection: sqlite3.Connection) -> Iterator[RunRow]:
    newest = "WHERE id IN (SELECT max(id) FROM runs GROUP BY flow_id) ORDER BY id"
    for _, row in _rows(connection, newest):
        yield row


def closed_before(connection: sqlite3.Connection, at_ms: int, limit: int) -> list[RunRow]:
    """Runs that closed before a time, in the order in which they closed."""
    where = "WHERE close_ms < ? ORDER BY close_ms, id LIMIT ?"
    return [row for _, row in _rows(connection, where, (at_ms, limit))]


def closed_rows(connection: sqlite3.Connection, after: int, limit: int) -> list[tuple[int, RunRow]]:
    """Closed runs with their keys, oldest first, from a key on."""
    return list(
        _rows(
            connection, "WHERE id > ? AND close_ms IS NOT NULL ORDER BY id LIMIT ?", (after, limit)
        )
    )


def all_rows(connection: sqlite3.Connection) -> Iterator[tuple[int, RunRow]]:
    """Every run with its key, oldest first."""
    return _rows(connection, "ORDER BY id")


def run(connection: sqlite3.Connection, run_id: str) -> RunRow | None:
    return next((row for _, row in _rows(connection, "WHERE run_id = ?", (run_id,))), None)


def runs_of(connection: sqlite3.Connection, flow_id: str) -> list[RunRow]:
    """All runs of a Flow ID, oldest first."""
    return [row for _, row in _rows(connection, "WHERE flow_id = ? ORDER BY id", (flow_id,))]


def facts(
    connection: sqlite3.Connection, run_id: str, first_number: int, limit: int
) -> list[tuple[int, bytes]]:
    key = connection.execute("SELECT id FROM runs WHERE run_id = ?", (run_id,)).fetchone()
    return [] if key is None else _facts(connection, key[0], first_number, limit)


def index_types(connection: sqlite3.Connection) -> dict[str, int]:
    rows: list[tuple[str, int]] = connection.execute(
        "SELECT name, type FROM index_types"
    ).fetchall()
    return dict(rows)


def stream_groups(connection: sqlite3.Connection) -> list[PutStreamGroup]:
    rows = connection.execute("SELECT id, flow_type, stream_name, capacity FROM stream_groups")
    return [PutStreamGroup(*row) for row in rows]


def stream_index(connection: sqlite3.Connection) -> list[tuple[int, int, str, int]]:
    """Sequence, group, Flow id and size (with both texts) of every message, oldest first."""
    # octet_length would not read the value; it is younger than the SQLite that Python 3.11 may come
    # with.
    return connection.execute(
        "SELECT sequence, group_id, flow_id, length(CAST(flow_id AS BLOB))"
        " + length(CAST(source AS BLOB)) + length(value) FROM stream_messages ORDER BY sequence"
    ).fetchall()


def stream_messages(
    connection: sqlite3.Connection, sequences: Sequence[int]
) -> dict[int, tuple[int, str, bytes]]:
    """Time, source and value by sequence."""
    rows = connection.execute(
        "SELECT sequence, created_ms, source, value FROM stream_messages"
        f" WHERE sequence IN ({_marks(sequences)})",
        sequences,
    )
    return {sequence: (created, source, value) for sequence, created, source, value in rows}
