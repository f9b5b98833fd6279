"""How values, times and enums of the wire are shown to people and to machines."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

from dex.dexpb import dex_pb2 as pb

_TEXT_LIMIT = 120


def plain(value: pb.Value) -> Any:
    """A value as JSON has it. Bytes and values that are kept elsewhere are objects that say so."""
    kind = value.WhichOneof("kind")
    if kind is None or kind == "null_value":
        return None
    if kind == "obj_value":
        payload = value.obj_value.payload
        if "json" in value.obj_value.encoding:
            try:
                return json.loads(payload)
            except ValueError:
                pass
        encoded = base64.b64encode(payload).decode()
        return {"encoding": value.obj_value.encoding, "base64": encoded}
    if kind.startswith("internal_blob_id"):
        return {"blob_id": getattr(value, kind)}
    return getattr(value, kind)


def short(value: pb.Value, limit: int = _TEXT_LIMIT) -> str:
    """A value as one short line."""
    text = json.dumps(plain(value), ensure_ascii=False, default=str)
    return text if len(text) <= limit else text[: limit - 1] + "…"


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
