"""How values, times and enums of the wire are shown to people and to machines."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from dex.dexpb import dex_pb2 as pb

from dex_lite._cli._payloads import BASE64, JSON, read_payload
from dex_lite._cli._text import as_json_text

_TEXT_LIMIT = 120
_JSON_ENCODING = "json"


def plain(value: pb.Value) -> Any:
    """A value as JSON has it.

    Bytes are an object that says what could be read from them, and so is a value that is kept elsewhere.
    """
    kind = value.WhichOneof("kind")
    if kind is None or kind == "null_value":
        return None
    if kind == "obj_value":
        form, content = read_encoded(value.obj_value)
        if form == JSON and value.obj_value.encoding == _JSON_ENCODING:
            return content
        return {"encoding": value.obj_value.encoding, form: content}
    if kind.startswith("internal_blob_id"):
        return {"blob_id": getattr(value, kind)}
    return getattr(value, kind)


def short(value: pb.Value, limit: int = _TEXT_LIMIT) -> str:
    """A value as one short line; of bytes that can be read, and of text that is JSON, only what they say."""
    shown = plain(value)
    kind = value.WhichOneof("kind")
    if kind == "obj_value":
        form, content = read_encoded(value.obj_value)
        shown = shown if form == BASE64 else content
    elif kind == "string_value" and value.string_value[:1] in ("{", "["):
        form, content = read_payload(value.string_value.encode(), is_json=True)
        shown = content if form == JSON else shown
    text = as_json_text(shown)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def read_encoded(value: pb.EncodedObject) -> tuple[str, Any]:
    """As :func:`read_payload`."""
    return read_payload(value.payload, is_json=value.encoding == _JSON_ENCODING)


def status(number: int) -> str:
    """`running`, `completed` and so on."""
    return enum_name(pb.FlowStatus, number, "FLOW_STATUS_")


def enum_name(enum: Any, number: int, prefix: str) -> str:
    """An enum value in small letters without its prefix; the number if it is not known."""
    try:
        return str(enum.Name(number)).removeprefix(prefix).lower()
    except ValueError:
        return str(number)


def milliseconds(stamp: Any) -> int | None:
    """Unix milliseconds of a timestamp; None if it is not set."""
    found: int = stamp.ToMilliseconds()
    return found or None


def iso(ms: int | None) -> str | None:
    """UTC as RFC 3339 with milliseconds."""
    if ms is None:
        return None
    moment = datetime.fromtimestamp(ms / 1_000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clock(ms: int | None) -> str:
    """Local time for a table."""
    if ms is None:
        return ""
    return datetime.fromtimestamp(ms / 1_000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def span(ms: int | None) -> str:
    """A duration with the unit that fits."""
    if ms is None:
        return ""
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1_000:.1f} s"
    minutes, seconds = divmod(round(ms / 1_000), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"
