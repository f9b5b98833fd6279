"""What a query can name: the fields of every run, and the indexes that Workers have registered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from dex_lite._search._query import Name, QueryError, Written
from dex_lite._search._terms import (
    BOOL,
    DATETIME,
    DOUBLE,
    INT,
    KEYWORD,
    KEYWORD_ARRAY,
    TEXT,
    TYPE_NAMES,
    Term,
    microseconds,
)

_STATUSES = {
    "running": 1,
    "completed": 2,
    "failed": 3,
    "timedout": 4,
    "terminated": 5,
    "canceled": 6,
    "continuedasnew": 7,
}
_RANGES = ("<", "<=", ">", ">=", "between")
_COMPARABLE = {
    KEYWORD: ("=", "in", "starts", "null", *_RANGES),
    TEXT: ("=", "null"),
    KEYWORD_ARRAY: ("=", "in", "starts", "null"),
    INT: ("=", "in", "null", *_RANGES),
    DOUBLE: ("=", "in", "null", *_RANGES),
    BOOL: ("=", "in", "null"),
    DATETIME: ("=", "in", "null", *_RANGES),
}
_SHOWN = {
    "in": "IN",
    "between": "BETWEEN",
    "starts": "STARTS_WITH",
    "null": "IS NULL",
}


class IndexTypeError(ValueError):
    """An index cannot have the type that was asked for."""


class Field(msgspec.Struct, frozen=True):
    """A field of a query. ``column`` is that of the table of runs, empty for an index."""

    name: str
    type: int
    source: Literal["column", "index", "active steps"] = "index"
    column: str = ""
    is_status: bool = False

    @property
    def is_sortable(self) -> bool:
        """Whether a run has one value of it that comes before or after another's."""
        return self.source != "active steps" and self.type not in (TEXT, KEYWORD_ARRAY)


def _column(name: str, index_type: int, column: str, *, is_status: bool = False) -> Field:
    return Field(name, index_type, "column", column, is_status)


SYSTEM_FIELDS = {
    field.name: field
    for field in (
        _column("FlowId", KEYWORD, "flow_id"),
        _column("WorkflowId", KEYWORD, "flow_id"),
        _column("RunId", KEYWORD, "run_id"),
        _column("FlowType", KEYWORD, "flow_type"),
        _column("WorkflowType", KEYWORD, "flow_type"),
        _column("ExecutionStatus", KEYWORD, "status", is_status=True),
        _column("StartTime", DATETIME, "start_ms"),
        _column("CloseTime", DATETIME, "close_ms"),
        Field("ActiveStepTypes", KEYWORD_ARRAY, "active steps"),
    )
}


def check_type(types: Mapping[str, int], name: str, index_type: int) -> None:
    """Refuse an index that cannot be beside these.

    Raises:
        IndexTypeError: It says why.
    """
    if index_type not in TYPE_NAMES:
        raise IndexTypeError(f"index {name!r} has the unknown type {index_type}")
    if name in SYSTEM_FIELDS:
        raise IndexTypeError(
            f"index {name!r} has the name of a field of every Flow. Give it another index key"
        )
    known = types.get(name)
    if known is not None and known != index_type:
        raise IndexTypeError(
            f"index {name!r} has type {TYPE_NAMES[known]}, and cannot become "
            f"{TYPE_NAMES[index_type]}. Give the new one another index key"
        )


def find(name: Name, types: Mapping[str, int]) -> Field:
    """The field of this name.

    Raises:
        QueryError: There is none.
    """
    field = SYSTEM_FIELDS.get(name.text)
    if field is not None:
        return field
    if name.text in types:
        return Field(name.text, types[name.text])
    known = sorted(types)
    more = f" and {len(known) - 20} more" if len(known) > 20 else ""
    raise QueryError(
        f"there is no field {name.text!r}. There are {', '.join(SYSTEM_FIELDS)}, and the indexes "
        f"that Workers registered: {', '.join(known[:20]) or 'none yet'}{more}",
        name.position,
    )


def check_operator(field: Field, operator: str, position: int) -> None:
    """Refuse an operator that says nothing about such a field."""
    allowed = _COMPARABLE[field.type]
    if field.is_status:
        allowed = ("=", "in", "null")
    if operator not in allowed:
        shown = ", ".join(_SHOWN.get(word, word) for word in allowed)
        raise QueryError(
            f"{field.name} is {_a_type(field)} and cannot be compared with "
            f"{_SHOWN.get(operator, operator)}; it takes {shown}",
            position,
        )


def _a_type(field: Field) -> str:
    return "a status" if field.is_status else f"of type {TYPE_NAMES[field.type]}"


def term(field: Field, written: Written) -> Term:
    """A value of a query as what is stored of such a field.

    Raises:
        QueryError: It is not of the field's type.
    """
    value = written.value
    if field.is_status:
        status = _STATUSES.get(value.casefold()) if isinstance(value, str) else None
        if status is None:
            raise QueryError(
                "ExecutionStatus is one of 'Running', 'Completed', 'Failed', 'TimedOut', 'Terminated' "
                "and 'Canceled'",
                written.position,
            )
        return status
    if field.type in (KEYWORD, KEYWORD_ARRAY, TEXT):
        if not isinstance(value, str):
            raise QueryError(f"{field.name} holds text: put it in quotes", written.position)
        return value
    if field.type == BOOL:
        if not isinstance(value, bool):
            raise QueryError(f"{field.name} is TRUE or FALSE", written.position)
        return int(value)
    if field.type == DATETIME:
        at = microseconds(value) if isinstance(value, str) else None
        if at is None:
            raise QueryError(
                f"{field.name} is a time, such as '2026-01-31T08:00:00Z'", written.position
            )
        # The table of runs counts milliseconds.
        return at / 1_000 if field.source == "column" else at
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise QueryError(f"{field.name} is a number, without quotes", written.position)
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise QueryError("a number must fit into 64 bits", written.position)
    return value
