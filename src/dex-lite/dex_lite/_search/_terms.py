"""Attribute values as index terms, pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import msgspec
from dex.dexpb import dex_pb2 as pb

from dex_lite._machine.model import RunState

Term: TypeAlias = str | int | float

KEYWORD = int(pb.INDEX_TYPE_KEYWORD)
TEXT = int(pb.INDEX_TYPE_TEXT)
KEYWORD_ARRAY = int(pb.INDEX_TYPE_KEYWORD_ARRAY)
INT = int(pb.INDEX_TYPE_INT)
DOUBLE = int(pb.INDEX_TYPE_DOUBLE)
BOOL = int(pb.INDEX_TYPE_BOOL)
DATETIME = int(pb.INDEX_TYPE_DATETIME)
TYPE_NAMES = {
    KEYWORD: "KEYWORD",
    TEXT: "TEXT",
    KEYWORD_ARRAY: "KEYWORD_ARRAY",
    INT: "INT",
    DOUBLE: "DOUBLE",
    BOOL: "BOOL",
    DATETIME: "DATETIME",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WORD = re.compile(r"\w+")


class Indexed(msgspec.Struct, frozen=True):
    """An Attribute in an index."""

    name: str
    value: bytes
    terms: tuple[Term, ...]


def terms(index_type: int, value: pb.Value) -> tuple[Term, ...] | None:
    """What an index of this type holds of the value; ``None`` if the value does not fit the type."""
    kind = value.WhichOneof("kind")
    plain = _plain(value)
    if index_type == KEYWORD:
        if isinstance(plain, bool):
            return ("true" if plain else "false",)
        return (str(plain),) if isinstance(plain, str | int | float) else None
    if index_type == TEXT:
        return words(plain) if isinstance(plain, str) else None
    if index_type == KEYWORD_ARRAY:
        if isinstance(plain, list) and all(isinstance(item, str) for item in plain):
            return tuple(dict.fromkeys(plain))
        return None
    if index_type == INT:
        return (value.int_value,) if kind == "int_value" else None
    if index_type == DOUBLE:
        numbers = ("double_value", "int_value")
        return (getattr(value, kind),) if kind is not None and kind in numbers else None
    if index_type == BOOL:
        return (int(value.bool_value),) if kind == "bool_value" else None
    if index_type == DATETIME and isinstance(plain, str):
        at = microseconds(plain)
        return None if at is None else (at,)
    return None


def _plain(value: pb.Value) -> object:
    """The value in Python, with JSON read; ``None`` for what no index takes."""
    kind = value.WhichOneof("kind")
    if kind == "obj_value" and value.obj_value.encoding == "json":
        try:
            return json.loads(value.obj_value.payload)
        except (ValueError, RecursionError):
            return None
    if kind in ("string_value", "int_value", "double_value", "bool_value"):
        return getattr(value, kind)
    return None


def words(text: str) -> tuple[str, ...]:
    """The words of a text, each once, without regard to case."""
    return tuple(dict.fromkeys(_WORD.findall(text.casefold())))


def microseconds(text: str) -> int | None:
    """A time in RFC 3339 as Unix microseconds; one without an offset is in UTC."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return (at - _EPOCH) // timedelta(microseconds=1)


def index_of(state: RunState, attribute: str, types: Mapping[str, int]) -> str | None:
    """The index of an Attribute: the one it was last written with, or the one of its own name.

    An index would keep the value of a hard-delete Attribute, also one that has the name of an index.
    """
    if attribute in state.secrets:
        return None
    return state.indexed.get(attribute) or (attribute if attribute in types else None)


def indexed(state: RunState, attribute: str, types: Mapping[str, int]) -> Indexed | None:
    """What the index holds of one Attribute of a run.

    A value that was there before its index, and does not fit it, is not in it.
    """
    name = index_of(state, attribute, types)
    encoded = state.attributes.get(attribute)
    if name is None or encoded is None:
        return None
    found = terms(types[name], pb.Value.FromString(encoded)) if name in types else None
    return None if found is None else Indexed(name, encoded, found)


def all_indexed(state: RunState, types: Mapping[str, int]) -> Iterator[tuple[str, Indexed]]:
    """Every Attribute of a run that an index holds."""
    for attribute in state.attributes:
        found = indexed(state, attribute, types)
        if found is not None:
            yield attribute, found
