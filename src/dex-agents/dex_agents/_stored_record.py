"""The stored form of a call's record, for the session and for what a runner keeps of it."""

from __future__ import annotations

from dataclasses import fields

from dex_agents._contract import Json, ToolCallRecord, ToolCallStatus
from dex_agents._media.reference import reference_to_json, references_from_json

_NAMES = tuple(f.name for f in fields(ToolCallRecord))


def record_to_json(record: ToolCallRecord) -> Json:
    """For storage; nested values are shared, not copied."""
    return {
        **{name: getattr(record, name) for name in _NAMES},
        "images": [reference_to_json(image) for image in record.images],
    }


def record_from_json(data: Json) -> ToolCallRecord:
    """From storage; what an earlier release did not know gets its default."""
    known = {name: data[name] for name in _NAMES if name in data}
    known["status"] = ToolCallStatus(data["status"])
    known["images"] = references_from_json(data.get("images"))
    return ToolCallRecord(**known)
