"""What the model of the next turn is told about a turn that failed, and how to know it again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from dex_agents._contract import AgentMessage, MessageRole, ToolCallRecord, ToolCallStatus
from dex_agents._effects import ToolEffect
from dex_agents._errors import TOOL_CALL_NOT_RUN_ERROR_PREFIX
from dex_agents._session.failures import clean_text
from dex_agents._session.records import FinishedCall, OpenCall
from dex_agents._session.results import encode_text

_TEXT_BYTES = 300
_NAME_BYTES = 100
_ALL_CALLS_BYTES = 64 * 1024
_COUNTS_BYTES = 4 * 1024
_BEGINNING = "[session note] The turn above "
_UNANSWERED = "it waited for an answer, and nobody gave one before the turn was cancelled"
_NOT_BEGUN = f"{TOOL_CALL_NOT_RUN_ERROR_PREFIX}: the turn was cancelled before it began"
_NOT_BEGUN_UNANSWERED = f"{TOOL_CALL_NOT_RUN_ERROR_PREFIX}: {_UNANSWERED}"
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


def stopped_call(call: OpenCall, *, is_unapproved: bool, is_unanswered: bool) -> FinishedCall:
    """What is known of a call that had no record when its turn was cancelled.

    Args:
        is_unapproved: Whether it has provably not begun.
        is_unanswered: Whether it waited for a person, before its tool began or behind that.
    """
    status = ToolCallStatus.OUTCOME_UNKNOWN
    text = _UNANSWERED if is_unanswered else _STOPPED
    if is_unapproved:
        status = ToolCallStatus.FAILED
        text = _NOT_BEGUN_UNANSWERED if is_unanswered else _NOT_BEGUN
    elif call.effect == ToolEffect.READ:
        status = ToolCallStatus.FAILED
    return FinishedCall(call.tool_name, call.call_id, str(status), text)


def turn_failure_note(
    reason: str, calls: Sequence[FinishedCall], *, is_cancelled: bool = False
) -> str:
    """The note; it names each call of the turn that ended, so that no write is done again."""
    how = "was cancelled" if is_cancelled else "failed"
    lines = [f"{_BEGINNING}{how} before it was answered: {reason}"]
    if calls:
        lines.append(
            "These are the tool calls of it, and how they ended:"
            if is_cancelled
            else "These tool calls of it had already ended:"
        )
        lines += _lines(calls)
        lines.append("Do not repeat a call that succeeded or whose outcome is unknown.")
    return "\n".join(lines)


def _lines(calls: Sequence[FinishedCall]) -> list[str]:
    """A line for each call; of too many for the models that read it, the rest is counted."""
    lines = [f"- {c.tool_name} ({c.call_id}): {c.status}: {c.text}" for c in calls]
    left = _ALL_CALLS_BYTES
    named = set()
    # What somebody has to look after comes first, then what is newest.
    for index in sorted(
        range(len(calls)),
        key=lambda i: (calls[i].status != ToolCallStatus.OUTCOME_UNKNOWN, -i),
    ):
        left -= len(lines[index].encode())
        if left < 0:
            break
        named.add(index)
    if len(named) == len(calls):
        return lines
    rest = Counter(
        (call.tool_name, call.status) for index, call in enumerate(calls) if index not in named
    )
    counts = ", ".join(f"{tool}: {count} {status}" for (tool, status), count in rest.most_common())
    before = (
        f"{len(calls) - len(named)} of them are too many to be named: "
        f"{clean_text(counts, _COUNTS_BYTES)}. The others:"
    )
    return [before, *(line for index, line in enumerate(lines) if index in named)]


def mark_older_notes(messages: Sequence[AgentMessage]) -> list[AgentMessage]:
    """Messages of whole turns, those marked that an earlier release stored without a mark as notes.

    A note is the last message of its turn and never the first, so that nothing with which a user
    opens a turn is taken for one, whatever it says.
    """
    marked = list(messages)
    for index in range(1, len(marked)):
        message, before = marked[index], marked[index - 1]
        is_last = index + 1 == len(marked) or marked[index + 1].turn_id != message.turn_id
        if (
            is_last
            and before.turn_id == message.turn_id
            and message.role is MessageRole.USER
            and message.text.startswith(_BEGINNING)
        ):
            marked[index] = replace(message, is_note=True)
    return marked
