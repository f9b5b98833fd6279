"""A tool's result as it is stored. Saving never decides whether a tool ran: what does not fit is cut, and says so."""

from __future__ import annotations

import json
import logging

from dex_agents._contract import Json, ToolCallRecord, ToolCallStatus, ToolExecutionResult
from dex_agents._session.encoding import EncodingError, encode
from dex_agents._session.failures import clean_text
from dex_agents._session.records import CallTask

_LOGGER = logging.getLogger("dex_agents")
_PREVIEW_SHARE = 2  # the preview takes at most this fraction of the limit, escapes included


def succeeded_record(
    task: CallTask, result: ToolExecutionResult, attempt: int, max_bytes: int
) -> ToolCallRecord:
    """The record of a call that succeeded."""
    framework_data = result.framework_data
    if not _fits(framework_data, max_bytes):
        _LOGGER.warning(
            "side data of tool %s dropped: it cannot be stored in %d bytes",
            task.call.tool_name,
            max_bytes,
        )
        framework_data = None
    return ToolCallRecord(
        task.call.call_id,
        task.call.tool_name,
        ToolCallStatus.SUCCEEDED,
        output=fit_output(result.output, max_bytes),
        framework_data=framework_data,
        attempt=attempt,
    )


def _fits(value: Json, max_bytes: int) -> bool:
    try:
        return len(encode(value)) <= max_bytes
    except EncodingError:
        return False


def fit_output(output: Json, max_bytes: int) -> Json:
    """The output, or ``{"truncated": true, "original_bytes": n, "preview": text}`` when it is too large.

    An output that is no JSON value is stored as ``{"unencodable": true, "preview": text}``.
    """
    try:
        size = len(encode(output))
    except EncodingError:
        preview = clean_text(repr(output), max_bytes // _PREVIEW_SHARE)
        return {"unencodable": True, "preview": preview}
    if size <= max_bytes:
        return output
    text = output if isinstance(output, str) else encode_text(output)
    return {
        "truncated": True,
        "original_bytes": len(text.encode("utf-8", "backslashreplace")),
        "preview": clean_text(text, max_bytes // _PREVIEW_SHARE),
    }


def encode_text(value: Json) -> str:
    """A JSON value as text for people."""
    return json.dumps(value, ensure_ascii=False)
