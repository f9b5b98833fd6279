"""What the model of the next turn is told about a turn that failed."""

from __future__ import annotations

from collections.abc import Sequence

from dex_agents._contract import ToolCallRecord, ToolCallStatus
from dex_agents._effects import ToolEffect
from dex_agents._errors import TOOL_CALL_NOT_RUN_ERROR_PREFIX
from dex_agents._session.failures import clean_text
from dex_agents._session.records import FinishedCall, OpenCall
from dex_agents._session.results import encode_text

_TEXT_BYTES = 300
_NAME_BYTES = 100
_NOT_APPROVED = f"{TOOL_CALL_NOT_RUN_ERROR_PREFIX}: the turn was cancelled before it began"
_STOPPED = "the turn was cancelled while it ran"


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


def open_call(call_id: str, tool_name: str, effect: ToolEffect) -> OpenCall:
    """What is kept of a call while it is open."""
    return OpenCall(
        clean_text(tool_name, _NAME_BYTES), clean_text(call_id, _NAME_BYTES), str(effect)
    )


def stopped_call(call: OpenCall, *, is_unapproved: bool) -> FinishedCall:
    """What is known of a call that had no record when its turn was cancelled."""
    status, text = ToolCallStatus.OUTCOME_UNKNOWN, _STOPPED
    if is_unapproved:
        status, text = ToolCallStatus.FAILED, _NOT_APPROVED
    elif call.effect == ToolEffect.READ:
        status = ToolCallStatus.FAILED
    return FinishedCall(call.tool_name, call.call_id, str(status), text)


def turn_failure_note(
    reason: str, calls: Sequence[FinishedCall], *, is_cancelled: bool = False
) -> str:
    """The note; it names each call of the turn that ended, so that no write is done again."""
    how = "was cancelled" if is_cancelled else "failed"
    lines = [f"[session note] The turn above {how} before it was answered: {reason}"]
    if calls:
        lines.append(
            "These are the tool calls of it, and how they ended:"
            if is_cancelled
            else "These tool calls of it had already ended:"
        )
        lines += [f"- {c.tool_name} ({c.call_id}): {c.status}: {c.text}" for c in calls]
        lines.append("Do not repeat a call that succeeded or whose outcome is unknown.")
    return "\n".join(lines)
