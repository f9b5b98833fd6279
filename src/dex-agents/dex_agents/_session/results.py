"""A tool's result as it is stored.

Saving never decides whether a tool ran: what does not fit is cut, and says so.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace

from dex_agents._contract import (
    NOT_STORED_KEY,
    InterruptKind,
    InterruptRequest,
    Json,
    ToolCallRecord,
    ToolCallStatus,
    ToolExecutionResult,
)
from dex_agents._media.reference import ImageReference
from dex_agents._session.encoding import EncodingError, encode, weight
from dex_agents._session.failures import clean_text
from dex_agents._session.records import CallTask

_LOGGER = logging.getLogger("dex_agents")
_PREVIEW_SHARE = 2  # the preview takes at most this fraction of the limit, escapes included
ROUND_BYTES = 2 * 1024 * 1024
"""What all results of one response may take together: one ``RunModel`` task carries them all."""
_HINT_BYTES = 16 * 1024
SHOWN_BYTES = 16 * 1024
"""Characters of JSON that a live event shows of a result."""


def result_limit(max_result_bytes: int, calls: int) -> int:
    """Largest stored result of one call of a response with so many calls."""
    return min(max_result_bytes, ROUND_BYTES // max(calls, 1))


def _images(tool_name: str, given: object) -> tuple[ImageReference, ...]:
    """What is an image of what a runner gave as images."""
    items = given if isinstance(given, Sequence) else [given]
    images = tuple(item for item in items if isinstance(item, ImageReference))
    if len(images) < len(items):
        _LOGGER.warning(
            "what tool %s gave as images and is no ImageReference is left out", tool_name
        )
    return images


def succeeded_record(
    task: CallTask, result: ToolExecutionResult, attempt: int, max_bytes: int
) -> ToolCallRecord:
    """The record of a call that succeeded, in at most about ``max_bytes`` as stored.

    Side data that takes more than half of that is dropped, and the output says so.
    """
    try:
        output, framework_data, given = result.output, result.framework_data, result.images
        losses = _texts(result.not_stored)
    except AttributeError:
        # The tool ran; that its runner gave the result in a wrong form must not hide it.
        output, framework_data = {"unencodable": True, "preview": _preview(result, max_bytes)}, None
        given, losses = (), []
    images = _images(task.call.tool_name, given)
    output, framework_data = _fit(task.call.tool_name, output, framework_data, max_bytes, losses)
    return ToolCallRecord(
        task.call.call_id,
        task.call.tool_name,
        ToolCallStatus.SUCCEEDED,
        output=output,
        framework_data=framework_data,
        attempt=attempt,
        images=images,
    )


def fit_interrupt(tool_name: str, asked: InterruptRequest, max_bytes: int) -> InterruptRequest:
    """What a tool's call waits for, in at most about ``max_bytes`` as stored.

    The tool has run, so that it is too large must not hide that. What is shown is cut like a result.
    """
    if asked.kind is InterruptKind.CREDENTIAL:
        return asked  # small, and the answer is of no use without all of it
    payload, framework_data = _fit(tool_name, asked.payload, asked.framework_data, max_bytes)
    return replace(
        asked,
        hint=clean_text(asked.hint, _HINT_BYTES),
        payload=payload,
        framework_data=framework_data,
    )


def _fit(
    tool_name: str, output: Json, framework_data: Json, max_bytes: int, losses: Sequence[str] = ()
) -> tuple[Json, Json]:
    """Output and side data in the space that there is for both."""
    if framework_data is not None:
        size = _size(framework_data)
        if size is None or size > max_bytes // 2:
            lost = _lost(size, max_bytes // 2)
            _LOGGER.warning("tool %s: %s", tool_name, lost)
            losses, framework_data = [*losses, lost], None
        else:
            max_bytes -= size
    if not losses:
        return fit_output(output, max_bytes), framework_data
    note = clean_text("; ".join(losses))
    return _with_note(fit_output(output, max_bytes // 2), note), framework_data


def _texts(given: object) -> list[str]:
    items = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    return [item for item in items if isinstance(item, str)]


def _lost(size: int | None, limit: int) -> str:
    what = "what the call left beside its result, such as session state, was not stored: "
    if size is None:
        return f"{what}it is no JSON"
    return f"{what}{size} bytes, limit {limit}; see AgentSessionOptions.max_result_bytes"


def _with_note(output: Json, note: str) -> Json:
    """The output, and for whoever reads it that something else of the call is lost."""
    has_room = isinstance(output, dict) and NOT_STORED_KEY not in output
    return {**(output if has_room else {"result": output}), NOT_STORED_KEY: note}


def _size(value: Json) -> int | None:
    try:
        return weight(value)
    except EncodingError:
        return None


def _preview(value: object, max_bytes: int) -> str:
    try:
        return clean_text(repr(value), max_bytes // _PREVIEW_SHARE)
    except Exception:
        return f"({type(value).__name__})"


def fit_output(output: Json, max_bytes: int) -> Json:
    """The output, or a stated substitute that fits.

    A too large one becomes ``{"truncated": true, "original_bytes": n, "preview": text}``; one that
    is no JSON value becomes ``{"unencodable": true, "preview": text}``.
    """
    size = _size(output)
    if size is None:
        return {"unencodable": True, "preview": _preview(output, max_bytes)}
    if size <= max_bytes:
        return output
    _LOGGER.warning(
        "a tool's result of %d bytes as stored was cut; see AgentSessionOptions.max_result_bytes",
        size,
    )
    return _cut(output, max_bytes)


def shown_output(output: Json) -> Json:
    """A stored output as live events carry it, cut to :data:`SHOWN_BYTES` like a too large result."""
    return output if len(encode_text(output)) <= SHOWN_BYTES else _cut(output, SHOWN_BYTES)


def _cut(output: Json, max_bytes: int) -> Json:
    text = output if isinstance(output, str) else encode_text(output)
    preview = clean_text(text, max_bytes // _PREVIEW_SHARE)
    # Escaped in storage, one character may take six bytes for each of its own.
    while len(encode(preview)) > max_bytes * 3 // 4:
        preview = clean_text(preview, len(preview.encode()) // 2)
    return {
        "truncated": True,
        "original_bytes": len(text.encode("utf-8", "backslashreplace")),
        "preview": preview,
    }


def encode_text(value: Json) -> str:
    """A JSON value as text for people."""
    return json.dumps(value, ensure_ascii=False)
