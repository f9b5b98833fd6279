"""Layout of the data file, and the checks that run before it is trusted.

Nothing here writes to a file that turns out to be foreign, damaged or newer: the header is read
with plain file I/O first, since opening such a file with SQLite may already change it (a hot
journal, a checkpoint).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import struct
from collections.abc import Callable, Iterator
from typing import Literal

from dex_lite._errors import (
    DataFileCorruptError,
    DataFileVersionError,
    DataFileWriteError,
    DataFolderError,
)
from dex_lite._in_place import check_only_name

Durability = Literal["full", "normal"]

APPLICATION_ID = 0x6465786C  # "dexl"
FORMAT = 3
_MAGIC = b"SQLite format 3\x00"
_HEADER_SIZE = 100
# Checking costs about 1 ms per MiB. A small file is always checked, a big one only after a stop
# that was not clean.
_ALWAYS_CHECK_BELOW = 4 << 20
_CHECK_AFTER_CRASH_BELOW = 256 << 20
# A foreign process that holds the write lock (a database browser) is waited for this long before a
# commit fails.
_BUSY_TIMEOUT_S = 10.0
# Safety net only: the journal checkpoints in idle moments, long before the log has this many pages.
_AUTO_CHECKPOINT_PAGES = 2048

_FORMAT_1 = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('clean_stop', 1), ('boots', 0);
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, run_id TEXT NOT NULL UNIQUE, flow_id TEXT NOT NULL,
    flow_type TEXT NOT NULL, status INTEGER NOT NULL, run_attempt INTEGER NOT NULL,
    request_id TEXT NOT NULL, first_run_id TEXT NOT NULL, start_ms INTEGER NOT NULL,
    close_ms INTEGER
);
CREATE INDEX runs_of_flow ON runs (flow_id, id);
CREATE INDEX runs_open ON runs (id) WHERE close_ms IS NULL;
-- id = runs.id * 2^32 + number: the facts of a run are neighbours, and need no second index.
CREATE TABLE facts (id INTEGER PRIMARY KEY, payload BLOB NOT NULL);
CREATE TABLE snapshots (run INTEGER PRIMARY KEY, number INTEGER NOT NULL, payload BLOB NOT NULL);
CREATE TABLE index_types (name TEXT PRIMARY KEY, type INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE stream_groups (
    id INTEGER PRIMARY KEY, flow_type TEXT NOT NULL, stream_name TEXT NOT NULL,
    capacity INTEGER NOT NULL
);
CREATE TABLE stream_messages (
    sequence INTEGER PRIMARY KEY, group_id INTEGER NOT NULL, created_ms INTEGER NOT NULL,
    flow_id TEXT NOT NULL, source TEXT NOT NULL, value BLOB NOT NULL
);
"""
# Attribute indexes: derived from the facts and index_types, written in the same commits.
_FORMAT_2 = """
CREATE INDEX runs_by_start ON runs (start_ms, id);
CREATE TABLE indexed_attributes (
    run INTEGER NOT NULL, attribute TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (run, attribute)
) WITHOUT ROWID;
CREATE INDEX runs_with_index ON indexed_attributes (name, run);
-- A term has no type of its own: those of one index are all texts, or all numbers.
CREATE TABLE index_terms (
    name TEXT NOT NULL, term NOT NULL, run INTEGER NOT NULL, attribute TEXT NOT NULL,
    PRIMARY KEY (name, term, run, attribute)
) WITHOUT ROWID;
CREATE INDEX terms_of_run ON index_terms (run, name, term);
INSERT INTO meta VALUES ('indexes_filled', 0);
"""
_FORMAT_WITH_INDEXES = 2
# Values of hard-delete Attributes: nowhere else, so that they can be removed. SQLite overwrites what
# is deleted, but may leave a copy where it moved a row to another page. The filler is what moves: it
# is as long as the part of a row that SQLite keeps in such a page, so the value is behind it, in
# pages of its own.
_FORMAT_3 = """
CREATE TABLE secrets (
    run INTEGER NOT NULL, attribute TEXT NOT NULL, filler BLOB NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (run, attribute)
) WITHOUT ROWID;
"""
_FORMAT_WITH_SECRETS = 3
# What turns a file of one format into the next one, from nothing on.
_STEPS = (_FORMAT_1, _FORMAT_2, _FORMAT_3)

Connect = Callable[..., sqlite3.Connection]


def resolve(path: str) -> str:
    """The one name of the data file, whatever links lead to it; its folder is created."""
    full = os.path.realpath(path)
    folder = os.path.dirname(full)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise DataFolderError(path, f"folder {folder}: {error.strerror}") from error
    if os.path.isdir(full):
        raise DataFolderError(path, "it is a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise DataFolderError(path, f"folder {folder} is not writable")
    return full


def prepare(path: str, connect: Connect = sqlite3.connect) -> None:
    """Make sure that a whole data file of this format is at `path`.

    Call it while holding the lock.
    """
    try:
        with open(path, "rb") as file:
            header = file.read(_HEADER_SIZE)
    except FileNotFoundError:
        header = b""
    except OSError as error:
        raise DataFolderError(path, str(error.strerror)) from error
    if not header:
        _create(path, connect)
    else:
        check_only_name(path)
        _check_header(path, header)


def _create(path: str, connect: Connect) -> None:
    # Built under another name and renamed, so that a crash leaves either no data file or a whole
    # one. Log files without their data file are what remains after somebody deleted it; SQLite
    # would apply them to the new one.
    unfinished = path + ".new"
    for leftover in (unfinished, unfinished + "-journal", path + "-wal", path + "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(leftover)
    try:
        connection = connect(unfinished, isolation_level=None)
        try:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {FORMAT}")
            connection.executescript(f"BEGIN; {''.join(_STEPS)} COMMIT;")
            connection.execute("PRAGMA journal_mode = WAL")
        finally:
            connection.close()
        os.replace(unfinished, path)
        folder = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except (sqlite3.Error, OSError) as error:
        raise DataFolderError(path, str(error)) from error


def check_header(path: str) -> int:
    """The format of the file.

    Raises:
        DataFileCorruptError: It is no data file.
        DataFileVersionError: A newer release wrote it.
    """
    try:
        with open(path, "rb") as file:
            header = file.read(_HEADER_SIZE)
    except OSError as error:
        raise DataFolderError(path, str(error.strerror)) from error
    return _check_header(path, header)


def empty(file_format: int = FORMAT) -> sqlite3.Connection:
    """An empty data file in memory, to compare another one with."""
    connection = sqlite3.connect(":memory:")
    connection.executescript("".join(_STEPS[:file_format]))
    return connection


def _check_header(path: str, header: bytes) -> int:
    if len(header) < _HEADER_SIZE or not header.startswith(_MAGIC):
        raise DataFileCorruptError(path, "it is not a dex-lite data file, or its start is damaged")
    user_version, application_id = struct.unpack(">I4xI", header[60:72])
    if application_id != APPLICATION_ID:
        raise DataFileCorruptError(path, "it is a SQLite database of another program")
    if user_version > FORMAT:
        raise DataFileVersionError(path, user_version, FORMAT)
    if user_version < 1:
        raise DataFileCorruptError(path, "its format number is missing")
    return int(user_version)


def open_writer(path: str, durability: Durability, connect: Connect) -> sqlite3.Connection:
    """The one connection that writes. Checks the content, then marks the file as in use."""
    try:
        connection = connect(
            path,
            isolation_level=None,
            check_same_thread=False,
            timeout=_BUSY_TIMEOUT_S,
            cached_statements=512,
        )
    except sqlite3.Error as error:
        raise DataFolderError(path, str(error)) from error
    try:
        _check_content(connection, path)
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
        connection.execute(f"PRAGMA synchronous = {durability}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_AUTO_CHECKPOINT_PAGES}")
        _migrate(connection)
        connection.execute(
            "UPDATE meta SET value = CASE key WHEN 'boots' THEN value + 1 ELSE 0 END"
            " WHERE key IN ('boots', 'clean_stop')"
        )
    except sqlite3.Error as error:
        connection.close()
        if is_damage(error):
            raise DataFileCorruptError(path, str(error)) from error
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_FULL:
            raise DataFileWriteError(path, str(error)) from error
        raise DataFolderError(path, str(error)) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection) -> None:
    """Bring a file of an older format to this one, as one commit."""
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if found < FORMAT:
        steps = "".join(_STEPS[found:])
        connection.executescript(
            f"BEGIN IMMEDIATE; {steps} PRAGMA user_version = {FORMAT}; COMMIT;"
        )


def _check_content(connection: sqlite3.Connection, path: str) -> None:
    size = os.path.getsize(path)
    clean = connection.execute("SELECT value FROM meta WHERE key = 'clean_stop'").fetchone()
    if clean is None:
        raise DataFileCorruptError(path, "its table of settings is empty")
    if size < (_ALWAYS_CHECK_BELOW if clean[0] else _CHECK_AFTER_CRASH_BELOW):
        finding = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if finding != "ok":
            raise DataFileCorruptError(path, " ".join(str(finding).split()))


def open_reader(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, timeout=_BUSY_TIMEOUT_S
    )
    connection.execute("PRAGMA query_only = ON")
    return connection


def has_log(path: str) -> bool:
    """Whether the file has a log that was not merged into it."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.getsize(path + "-wal") > 0
    return False


@contextlib.contextmanager
def without_waiting(connection: sqlite3.Connection) -> Iterator[None]:
    """Whoever holds a lock that is needed in the block is not waited for."""
    connection.execute("PRAGMA busy_timeout = 0").fetchone()
    try:
        yield
    finally:
        connection.execute(f"PRAGMA busy_timeout = {int(_BUSY_TIMEOUT_S * 1_000)}").fetchone()


def boots(connection: sqlite3.Connection) -> int:
    """How many times the file was opened: part of what must never repeat after a crash."""
    value: int = connection.execute("SELECT value FROM meta WHERE key = 'boots'").fetchone()[0]
    return value


def has_indexes(connection: sqlite3.Connection) -> bool:
    """Whether the file is of a format with Attribute indexes."""
    return bool(connection.execute("PRAGMA user_version").fetchone()[0] >= _FORMAT_WITH_INDEXES)


def has_secrets(connection: sqlite3.Connection) -> bool:
    """Whether the file is of a format with hard-delete Attributes."""
    return bool(connection.execute("PRAGMA user_version").fetchone()[0] >= _FORMAT_WITH_SECRETS)


def are_indexes_filled(connection: sqlite3.Connection) -> bool:
    """Whether every closed run is in every Attribute index."""
    row = connection.execute("SELECT value FROM meta WHERE key = 'indexes_filled'").fetchone()
    return bool(row and row[0])


def mark_clean_stop(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE meta SET value = 1 WHERE key = 'clean_stop'")


class ReadErrors:
    """Context manager: damage found while reading becomes the named error."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, sqlite3.Error) and is_damage(error):
            raise DataFileCorruptError(self._path, str(error)) from error


def is_damage(error: sqlite3.Error) -> bool:
    """Whether SQLite says that the content is damaged, and not that it could not be reached."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return False
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
