"""How everything of a session is stored.

A format byte, then JSON with key order kept, compressed when that pays. The SDK's own codecs sort
keys and refuse data of an older shape, so all of a session's state is ``bytes`` to it.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

_PLAIN, _DEFLATED = b"\x01", b"\x02"
_WORTH_COMPRESSING = 512
MOST_EXPANSION = 16
"""How many times as large as stored a value may become, where a stranger says what is stored."""


# Made once: ``json.dumps`` makes one for each call that does not take its defaults.
_to_text = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


class EncodingError(ValueError):
    """A value is no JSON value, or stored bytes are in no known format."""


def encode(value: Any) -> bytes:
    """Encode a JSON value.

    Text is escaped to ASCII, so any string survives, lone surrogates included.

    Raises:
        EncodingError: The value is no JSON value; NaN and infinities are none either.
    """
    return _pack(_text(value))


def weight(value: Any) -> int:
    """Bytes of a value as stored, or more if it becomes too large when it is read.

    Every model call of a session reads its whole history, so a few stored bytes that stand for many
    megabytes must not count as few.

    Raises:
        EncodingError: As of :func:`encode`.
    """
    text = _text(value)
    return max(len(_pack(text)), len(text) // MOST_EXPANSION)


def _text(value: Any) -> bytes:
    try:
        return _to_text(value).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise EncodingError(f"not a JSON value: {error}") from error


def _pack(text: bytes) -> bytes:
    if len(text) < _WORTH_COMPRESSING:
        return _PLAIN + text
    packed = zlib.compress(text, 1)
    return _DEFLATED + packed if len(packed) < len(text) else _PLAIN + text


def decode(data: bytes) -> Any:
    """The value that was encoded.

    Raises:
        EncodingError: The bytes come from a newer release, or are damaged.
    """
    try:
        if data[:1] == _PLAIN:
            return json.loads(data[1:])
        if data[:1] == _DEFLATED:
            return json.loads(zlib.decompress(data[1:]))
    except (ValueError, RecursionError, zlib.error) as error:
        raise EncodingError(f"stored data is damaged: {error}") from error
    raise EncodingError(f"stored data has the unknown format {data[:1]!r}; upgrade dex-agents")
