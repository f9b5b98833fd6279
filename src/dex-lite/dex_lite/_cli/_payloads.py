"""What stored bytes say.

The SDK stores JSON, or bytes as the application made them. Those may have a format of their own: a package
that has one names its reader in the entry points of :data:`DECODERS`, a function that takes the bytes, gives a
JSON value, and raises `ValueError` for bytes that are not its own. So nothing of other packages is known here.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import Any

DECODERS = "dex_lite.decoders"
JSON, TEXT, BASE64 = "json", "text", "base64"
_DEEPEST = 200

_log = logging.getLogger(__name__)


def read_payload(payload: bytes, *, is_json: bool = False) -> tuple[str, Any]:
    """In which form the bytes can be read, and what they say so: `json`, `text`, and `base64` for all others."""
    for read in (_read_json, *(() if is_json else _decoders())):
        try:
            content = read(payload)
        except Exception:
            # Not its format, or a decoder with a fault: the value can still be shown in another form.
            continue
        if _is_flat_enough(content):
            return JSON, content
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return BASE64, base64.b64encode(payload).decode()
    if all(character.isprintable() or character in "\t\r\n" for character in text):
        return TEXT, text
    return BASE64, base64.b64encode(payload).decode()


def _read_json(payload: bytes) -> Any:
    # Python reads NaN and infinities, which no other reader of our output may know.
    return json.loads(payload.decode(), parse_constant=_refuse)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _is_flat_enough(content: Any) -> bool:
    """Whether it can be written again; Python's writer goes less deep than its reader."""
    level = [content]
    for _ in range(_DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return True
    return False


@cache
def _decoders() -> list[Callable[[bytes], Any]]:
    # Loaded with the first value that needs them: they may import much.
    found = []
    for entry in entry_points(group=DECODERS):
        try:
            found.append(entry.load())
        except Exception:
            # A broken package is no reason not to show the rest.
            _log.warning("the decoder %s of %s cannot be loaded", entry.name, entry.value)
    return found
