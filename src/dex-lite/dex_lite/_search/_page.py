"""One page of results: the statement, the token of the next page, and the rows."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from dex_lite._records import RunRow
from dex_lite._search._sql import Compiled, Part, SortKey

MOST_ROWS = 1_000
MOST_VALUES_SHOWN = (
    100  # of one run: with the limit of an indexed value, one row fits into an answer
)
_TOKEN_VERSION = 1
_COLUMNS = (
    "run_id, flow_id, flow_type, status, run_attempt, request_id, first_run_id, start_ms, close_ms"
)


class PageTokenError(ValueError):
    """The token is not one of this query."""


class Found(msgspec.Struct, frozen=True):
    """One run, what its indexes hold, and where a page after it goes on."""

    row: RunRow
    attributes: tuple[tuple[str, bytes], ...]  # index, value; an index of a map may be there again
    position: tuple[Any, ...]

    @property
    def size(self) -> int:
        """About how many bytes it has as part of an answer."""
        row = self.row
        names = len(row.flow_id) + len(row.run_id) + len(row.flow_type)
        return (
            64 + 4 * names + sum(len(value) + 4 * len(name) + 16 for name, value in self.attributes)
        )


def token(query: str, position: Sequence[Any]) -> str:
    """What a client gives back to have the rows after this position."""
    data = json.dumps([_TOKEN_VERSION, _digest(query), *position]).encode()
    return base64.urlsafe_b64encode(data).decode()


def position_of(query: str, given: str, keys: int) -> tuple[Any, ...] | None:
    """The position in a token; ``None`` is the begin.

    Raises:
        PageTokenError: It was not made for this query.
    """
    if not given:
        return None
    try:
        found = json.loads(base64.b64decode(given.encode(), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError):
        found = None
    if (
        not isinstance(found, list)
        or found[:2] != [_TOKEN_VERSION, _digest(query)]
        or len(found) != 2 + keys
        or not all(_is_term(value) for value in found[2:])
    ):
        raise PageTokenError("the page token is not one of this query")
    return tuple(found[2:])


def _is_term(value: Any) -> bool:
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 63
    return value is None or isinstance(value, str | float)


def _digest(query: str) -> str:
    return hashlib.sha256(query.encode()).hexdigest()[:16]


def read_page(
    connection: sqlite3.Connection,
    compiled: Compiled,
    after: Sequence[Any] | None,
    size: int,
    size_bytes: int,
) -> tuple[list[Found], bool]:
    """At most so many rows in order, after a position, and whether there are more.

    It is less than ``size`` also if the values are large; one row is always there, if there is one. All rows are of one
    moment of the file.
    """
    statement = _statement(compiled, after, size + 1)
    page: list[Found] = []
    connection.execute("BEGIN")
    try:
        rows = connection.execute(statement.sql, statement.parameters).fetchall()
        for row in rows[:size]:
            found = Found(RunRow(*row[1:10]), _attributes(connection, row[0]), tuple(row[10:]))
            size_bytes -= found.size
            if page and size_bytes < 0:
                break
            page.append(found)
    finally:
        connection.execute("ROLLBACK")
    return page, len(rows) > len(page)


def _statement(compiled: Compiled, after: Sequence[Any] | None, limit: int) -> Part:
    keys = [f"k{number}" for number in range(len(compiled.sort))]
    selected = ", ".join(
        f"{key.part.sql} AS {name}" for key, name in zip(compiled.sort, keys, strict=True)
    )
    columns = ", ".join(f"r.{name}" for name in _COLUMNS.split(", "))
    later = Part("1") if after is None else _after(compiled.sort, keys, after)
    order = ", ".join(
        f"{name} {'DESC' if key.is_descending else 'ASC'}"
        for key, name in zip(compiled.sort, keys, strict=True)
    )
    sql = (
        f"SELECT * FROM (SELECT r.id AS id, {columns}, {selected} FROM runs AS r "
        f"WHERE {compiled.condition.sql}) WHERE {later.sql} ORDER BY {order} LIMIT ?"
    )
    parameters = (
        *(value for key in compiled.sort for value in key.part.parameters),
        *compiled.condition.parameters,
        *later.parameters,
        limit,
    )
    return Part(sql, parameters)


def _after(sort: Sequence[SortKey], names: Sequence[str], after: Sequence[Any]) -> Part:
    """Strictly after a position in the given order."""
    branches: list[str] = []
    parameters: list[Any] = []
    for index, key in enumerate(sort):
        equal = [f"{name} IS ?" for name in names[:index]]
        sign = "<" if key.is_descending else ">"
        branches.append(f"({' AND '.join([*equal, f'{names[index]} {sign} ?'])})")
        parameters += after[: index + 1]
    if after[0] is not None:
        # The same once more for the first key alone: an index on it can then start there.
        sign = "<=" if sort[0].is_descending else ">="
        return Part(f"{names[0]} {sign} ? AND ({' OR '.join(branches)})", (after[0], *parameters))
    return Part(f"({' OR '.join(branches)})", tuple(parameters))


def _attributes(connection: sqlite3.Connection, key: int) -> tuple[tuple[str, bytes], ...]:
    return tuple(
        connection.execute(
            "SELECT name, value FROM indexed_attributes WHERE run = ? ORDER BY attribute LIMIT ?",
            (key, MOST_VALUES_SHOWN),
        )
    )
