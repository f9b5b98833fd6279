"""Text that a terminal can show: what others chose must not steer it, nor break an encoding."""

from __future__ import annotations

import json
import re
from typing import Any

# Control characters without the newline, and what turns the direction of a line.
_UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """The text with every character escaped that a terminal would obey instead of showing it."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode-escape").decode(), text)


def as_json_text(data: Any, indent: int | None = None) -> str:
    """JSON in which all that can be shown stands as it is; it reads back as the same data."""
    text = json.dumps(data, indent=indent, ensure_ascii=False, default=str)
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
