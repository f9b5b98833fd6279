"""Messages with values that nobody should send, made from their descriptors by a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

TEXTS = (
    "",
    " ",
    "\0",
    "a/b$:c",
    "m/",
    "/",
    "é\u202e\U0010ffff",
    "'; DROP TABLE runs; --",
    "../../etc/passwd",
    "sys:timeout_handler",
    "SubFlow:f-S-1-0",
    "S-0",
    "S--1",
    "S-99999999999999999999",
    "9" * 40,
    "1_0",
    "٣",
    "2026-99-99T99:99:99Z",
    "x" * 300,
    "x" * 70_000,
)
_KINDS = FieldDescriptor
_NUMBERS = {
    _KINDS.TYPE_INT32: (-1, 0, 1, 2**31 - 1, -(2**31)),
    _KINDS.TYPE_INT64: (-1, 0, 1, 2**53, 2**63 - 1, -(2**63)),
    _KINDS.TYPE_UINT32: (0, 1, 2**32 - 1),
    _KINDS.TYPE_BOOL: (False, True),
    _KINDS.TYPE_ENUM: (-1, 0, 1, 2, 3, 99, 2**31 - 1),
    _KINDS.TYPE_DOUBLE: (float("nan"), float("inf"), -float("inf"), -0.0, 1e308, 0.5),
    _KINDS.TYPE_FLOAT: (float("nan"), float("inf"), -float("inf"), -1.0, 0.5, 3e38),
    _KINDS.TYPE_BYTES: (b"", b"\0\xff", b"9" * 40, b"{" * 500, b"x" * 70_000),
}
_DEEPEST = 5


class Hostile:
    """Fills messages; ``likely`` gives good values for fields of a name, so that checks behind them are reached."""

    def __init__(self, seed: int, likely: Mapping[str, tuple[Any, ...]]) -> None:
        self.random = random.Random(seed)
        self._likely = likely
        self._share = 0.5

    def fill(self, message: Any, depth: int = 0) -> Any:
        """Set some, half or most of the fields, down to a depth."""
        if not depth:
            self._share = self.random.choice((0.15, 0.5, 0.8))
        for field in message.DESCRIPTOR.fields:
            if (field.name in self._likely and not depth) or self.random.random() < self._share:
                self._set(message, field, depth)
        return message

    def _set(self, message: Any, field: FieldDescriptor, depth: int) -> None:
        pick = self.random
        found = getattr(message, field.name)
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if is_map:
            assert field.message_type is not None
            entry = field.message_type.fields_by_name["value"]
            for _ in range(pick.choice((1, 2))):
                key = pick.choice(TEXTS)
                if entry.message_type is None:
                    found[key] = self._scalar(entry)
                else:
                    self.fill(found[key], depth + 1)
        elif field.is_repeated:
            for _ in range(pick.choice((1, 1, 2, 3))):
                if field.message_type is None:
                    found.append(self._scalar(field))
                elif depth < _DEEPEST:
                    self.fill(found.add(), depth + 1)
                    if pick.random() < 0.2:
                        found.append(found[-1])
        elif field.message_type is not None:
            if depth < _DEEPEST:
                found.SetInParent()
                self.fill(found, depth + 1)
        else:
            setattr(message, field.name, self._scalar(field))

    def _scalar(self, field: FieldDescriptor) -> Any:
        likely = self._likely.get(field.name, ())
        if likely and self.random.random() < 0.8:
            return self.random.choice(likely)
        if field.type == _KINDS.TYPE_STRING:
            return self.random.choice(TEXTS)
        return self.random.choice(_NUMBERS[field.type])
