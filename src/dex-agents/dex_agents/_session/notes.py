"""What the model of the next turn is told about a turn that failed."""

from __future__ import annotations

from collections.abc import Sequence

from dex_agents._contract import ToolCallRecord, ToolCallStatus
from dex_agents._session.failures import clean_text
from dex_agents._session.records import FinishedCall
from dex_agents._session.results import encode_text

_TEXT_BYTES = 300
_NAME_BYTES = 100


def finished_call(record: ToolCallRecord) -> FinishedCall:
    """What is kept of a record after the model has read it."""
    if record.status is ToolCallStatus.SUCCEEDED:
        text = encode_text(record.output)
    elif record.status is ToolCallStatus.REJECTED:
        text = record.rejection_message
    else:
        text = record.error
    return FinishedCall(
        clean_text(record.tool_name, _NAME_BYTES),
        clean_text(record.call_id, _NAME_BYTES),
        str(record.status),
        clean_text(text, _TEXT_BYTES),
    )


def turn_failure_note(reason: str, calls: Sequence[FinishedCall]) -> str:
    """The note; it names each call of the turn that ended, so that no write is done again."""
    lines = [f"[session note] The turn above failed before it was answered: {reason}"]
    if calls:
        lines.append("These tool calls of it had already ended:")
        lines += [f"- {c.tool_name} ({c.call_id}): {c.status}: {c.text}" for c in calls]
        lines.append("Do not repeat a call that succeeded or whose outcome is unknown.")
    return "\n".join(lines)
