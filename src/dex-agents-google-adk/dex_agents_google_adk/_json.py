"""The JSON form of what tools, callbacks and session state hold.

Saving a result must never decide whether a tool ran, so :func:`to_json` accepts every Python value.
Where ADK itself can store a value (``Event.model_dump(mode="json")``) the form is the same;
elsewhere it is:

================================  =====================================================
value                             form
================================  =====================================================
NaN and the infinities            ``"NaN"``, ``"Infinity"``, ``"-Infinity"``
integers of more than 4,000 bits  hexadecimal text such as ``"0x1f…"``
text with lone surrogates         the surrogates as ``\\udXXX`` escapes
bytes                             URL-safe base64, as ADK writes them
other objects                     ``repr``
keys that look the same           the later ones with their type, as ``"1 (int 2)"``
a container inside itself         ``"<circular reference>"``
nesting deeper than 100           ``repr`` of what lies below
================================  =====================================================
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from dex_agents._contract import Json

_MAXIMUM_DEPTH = 100
_MAXIMUM_INTEGER_BITS = 4_000
_MAXIMUM_REPR_CHARACTERS = 2_000
_CIRCULAR = "<circular reference>"


def to_json(value: Any) -> Json:
    """The JSON form of ``value``; never raises for what the value is."""
    try:
        return _convert(value, 0, ())
    except Exception:  # what breaks while it is read, or changes meanwhile
        return _repr(value)


def copy_json(value: Any) -> Any:
    """A deep copy of a JSON value, a good deal faster than :func:`copy.deepcopy`."""
    if type(value) is dict:
        return {key: copy_json(item) for key, item in value.items()}
    if type(value) is list:
        return [copy_json(item) for item in value]
    return value


def _convert(value: Any, depth: int, above: tuple[int, ...]) -> Json:
    kind = type(value)
    if kind is str:
        return _text(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        return value if value.bit_length() <= _MAXIMUM_INTEGER_BITS else f"{value:#x}"
    if kind is float:
        return _number(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.urlsafe_b64encode(bytes(value)).decode("ascii")
    if isinstance(value, (dict, list, tuple, set, frozenset)):
        if id(value) in above:
            return _CIRCULAR
        if depth >= _MAXIMUM_DEPTH:
            return _repr(value)
        if isinstance(value, dict):
            return _object(value, depth, above)
        return _array(value, depth, above)
    return _other(value, depth, above)


def _object(value: dict[Any, Any], depth: int, above: tuple[int, ...]) -> Json:
    inside = (*above, id(value))
    form = {_key(key): _convert(item, depth + 1, inside) for key, item in value.items()}
    if len(form) == len(value):
        return form
    # Keys such as 1 and "1" look the same.
    apart: dict[str, Json] = {}
    for key, item in sorted(value.items(), key=lambda entry: type(entry[0]) is not str):
        name, number = _key(key), 2
        while name in apart:
            name, number = f"{_key(key)} ({type(key).__name__} {number})", number + 1
        apart[name] = _convert(item, depth + 1, inside)
    return apart


def _array(value: Iterable[Any], depth: int, above: tuple[int, ...]) -> Json:
    inside = (*above, id(value))
    return [_convert(item, depth + 1, inside) for item in value]


def _other(value: Any, depth: int, above: tuple[int, ...]) -> Json:
    if depth >= _MAXIMUM_DEPTH or id(value) in above:
        return _CIRCULAR if id(value) in above else _repr(value)
    try:
        form = to_jsonable_python(
            value,
            by_alias=False,
            exclude_none=True,
            bytes_mode="base64",
            serialize_unknown=True,
        )
    except Exception:  # a model with a broken serializer must not lose the result
        if isinstance(value, BaseModel):
            fields = {name: item for name, item in value if item is not None}
            return _convert(fields, depth, (*above, id(value)))
        return _repr(value)
    if type(form) not in (str, bool, int, float, list, dict) and form is not None:
        return _repr(value)
    return _convert(form, depth, above)


def _key(key: Any) -> str:
    if type(key) is str:
        return _text(key)
    try:
        form = next(iter(to_jsonable_python({key: None}, bytes_mode="base64")))
    except Exception:
        form = _repr(key)
    return _text(str(form))


def _number(value: float) -> Json:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _text(value: str) -> str:
    if value.isascii():
        return value
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return value


def _repr(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__name__} whose repr failed: {type(error).__name__}>"
    return _text(text[:_MAXIMUM_REPR_CHARACTERS])
