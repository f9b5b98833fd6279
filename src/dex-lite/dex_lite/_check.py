"""Verification of a data file: every invariant that can be read from it, without changing it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
from dex.dexpb import dex_pb2 as pb
from google.protobuf.message import DecodeError

from dex_lite import _schema
from dex_lite._check_indexes import orphans
from dex_lite._check_runs import check_facts, check_flow_ids, check_runs
from dex_lite._errors import DataFileCorruptError, DataFileMissingError, DataFolderError
from dex_lite._stream_log import BOOT_SHIFT

_FAULTS_SHOWN = 20


class CheckResult(msgspec.Struct):
    """What one check found."""

    name: str
    unit: str  # what was counted
    count: int = 0
    fault_count: int = 0
    faults: list[str] = msgspec.field(default_factory=list)  # the first ones

    def fault(self, text: str) -> None:
        """Something is wrong."""
        self.fault_count += 1
        if len(self.faults) < _FAULTS_SHOWN:
            self.faults.append(text)


_Check = Callable[[sqlite3.Connection, CheckResult], None]


def check(path: str) -> list[CheckResult]:
    """All checks in order. An engine may run on the file: what is checked is one moment of it.

    Raises DataFileMissingError, DataFolderError if the file cannot be read, and the named errors of a file that is not
    a data file of this format.
    """
    if not os.path.isfile(path):
        raise DataFileMissingError(path)
    _schema.check_header(path)
    results: list[CheckResult] = []
    try:
        with closing(open_unchanging(path)) as connection:
            connection.execute("BEGIN")
            for name, unit, function in _CHECKS:
                results.append(result := CheckResult(name, unit))
                try:
                    function(connection, result)
                except sqlite3.Error as error:
                    result.fault(f"cannot be read: {error}")
    except sqlite3.Error as error:
        if _schema.is_damage(error):
            raise DataFileCorruptError(path, str(error)) from error
        raise DataFolderError(path, str(error)) from error
    return results


def open_unchanging(path: str) -> sqlite3.Connection:
    """A connection that leaves the file as it is.

    A file without a write-ahead log is read as it lies: otherwise SQLite would put files beside it
    that a reader cannot remove.
    """
    has_log = os.path.exists(path + "-wal")
    address = Path(path).absolute().as_uri() + ("?mode=ro" if has_log else "?immutable=1")
    connection = sqlite3.connect(address, uri=True, isolation_level=None)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _integrity(connection: sqlite3.Connection, result: CheckResult) -> None:
    result.count = connection.execute("PRAGMA page_count").fetchone()[0]
    for (finding,) in connection.execute("PRAGMA integrity_check(100)"):
        if finding != "ok":
            for line in str(finding).splitlines():
                result.fault(line)


def _tables(connection: sqlite3.Connection, result: CheckResult) -> None:
    found = dict(_layout(connection))
    file_format = connection.execute("PRAGMA user_version").fetchone()[0]
    with closing(_schema.empty(file_format)) as model:
        for name, columns in _layout(model):
            result.count += 1
            if name not in found:
                result.fault(f"{name} is missing")
            elif found[name] != columns:
                result.fault(f"{name} has columns {', '.join(found[name])}")


def _layout(connection: sqlite3.Connection) -> Iterator[tuple[str, list[str]]]:
    names = connection.execute(
        "SELECT name, type FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' ORDER BY name"
    ).fetchall()
    for name, kind in names:
        pragma = "table_info" if kind == "table" else "index_info"
        position = 1 if kind == "table" else 2
        rows = connection.execute(f"PRAGMA {pragma}({name})")
        # A column without a name is the row id.
        yield name, [str(row[position] or "id") for row in rows]


def _settings(connection: sqlite3.Connection, result: CheckResult) -> None:
    values = dict(connection.execute("SELECT key, value FROM meta").fetchall())
    result.count = len(values)
    flags = ["clean_stop", *(["indexes_filled"] if _schema.has_indexes(connection) else [])]
    for key, least, most in (("boots", 0, 1 << 22), *((flag, 0, 1) for flag in flags)):
        value = values.get(key)
        if not isinstance(value, int) or not least <= value <= most:
            result.fault(f"{key} is {value!r}")


def _index_types(connection: sqlite3.Connection, result: CheckResult) -> None:
    known = set(pb.IndexType.values()) - {0}
    for name, number in connection.execute("SELECT name, type FROM index_types"):
        result.count += 1
        if not name or number not in known:
            result.fault(f"index {name!r} has type {number!r}")
    for fault in orphans(connection):
        result.fault(fault)


def _stream_groups(connection: sqlite3.Connection, result: CheckResult) -> None:
    seen: set[tuple[str, str]] = set()
    rows = connection.execute(
        "SELECT id, flow_type, stream_name, capacity FROM stream_groups ORDER BY id"
    )
    for number, (key, flow_type, name, capacity) in enumerate(rows, 1):
        result.count += 1
        if key != number:
            result.fault(f"Stream {number} is missing, the next one is {key}")
        if not flow_type or not name:
            result.fault(f"Stream {key} has no Flow type or no name")
        if not isinstance(capacity, int) or capacity <= 0:
            result.fault(f"Stream {name!r} of {flow_type!r} has capacity {capacity!r}")
        if (flow_type, name) in seen:
            result.fault(f"Stream {name!r} of {flow_type!r} is there twice")
        seen.add((flow_type, name))


def _stream_messages(connection: sqlite3.Connection, result: CheckResult) -> None:
    groups = {key for (key,) in connection.execute("SELECT id FROM stream_groups")}
    boots = connection.execute("SELECT value FROM meta WHERE key = 'boots'").fetchone()
    end = ((boots[0] if boots else 0) + 1) << BOOT_SHIFT
    for sequence, group, flow_id, source, value in connection.execute(
        "SELECT sequence, group_id, flow_id, source, value FROM stream_messages ORDER BY sequence"
    ):
        result.count += 1
        named = f"message {sequence} of Flow {flow_id!r}"
        if group not in groups:
            result.fault(f"{named} belongs to Stream {group}, which does not exist")
        if not 0 < sequence < end:
            result.fault(f"{named} has a number that no start of the engine has given yet")
        if not flow_id or not source:
            result.fault(f"{named} has no Flow id or no source")
        try:
            pb.Value.FromString(value)
        except (DecodeError, TypeError) as error:
            result.fault(f"{named} has no readable value: {error}")


_CHECKS: tuple[tuple[str, str, _Check], ...] = (
    ("SQLite integrity", "pages", _integrity),
    ("tables and indexes", "tables", _tables),
    ("settings", "values", _settings),
    ("runs", "runs", check_runs),
    ("Flow ids", "Flow ids", check_flow_ids),
    ("facts and snapshots", "facts", check_facts),
    ("Attribute indexes", "indexes", _index_types),
    ("Streams", "Streams", _stream_groups),
    ("Stream messages", "messages", _stream_messages),
)
