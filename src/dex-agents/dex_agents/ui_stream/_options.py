"""What a UI stream shows."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dex_agents._arguments import shown
from dex_agents._contract import Json, ToolCallStatus
from dex_agents.ui_stream._changes import CANCELLED, CallFinished, TurnEnded, UiInterrupt

HIDDEN = "(not shown)"
_NO_RESULT = {
    ToolCallStatus.FAILED: "The tool call failed.",
    ToolCallStatus.REJECTED: "The tool call was rejected.",
    ToolCallStatus.OUTCOME_UNKNOWN: "It is not known whether the tool call took effect.",
    CANCELLED: "The turn ended before the tool call did.",
}


@dataclass(frozen=True)
class UiStreamOptions:
    """What of a session leaves the server.

    Attributes:
        show_errors: Error texts as the session has them. They may name hosts, files or records of
            the application; without it a stream says only what kind of failure it was.
        show_tool_inputs: Arguments of tool calls. An approval is always shown with its arguments,
            as nobody should approve what they cannot see.
        show_tool_outputs: Results of tool calls.
        show_reasoning: Summaries of what the model thinks.
    """

    show_errors: bool = False
    show_tool_inputs: bool = True
    show_tool_outputs: bool = True
    show_reasoning: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, bool):
                raise TypeError(f"{field.name} must be True or False, got {shown(value)}")

    def input_of(self, arguments: Json) -> Json:
        """Arguments as shown."""
        return arguments if self.show_tool_inputs else {}

    def output_of(self, output: Json) -> Json:
        """A result as shown."""
        return output if self.show_tool_outputs else HIDDEN

    def error_of_call(self, call: CallFinished) -> str:
        """Why a call has no result."""
        if self.show_errors and call.error:
            return call.error
        return _NO_RESULT.get(call.status, _NO_RESULT[ToolCallStatus.FAILED])

    def error_of_turn(self, turn: TurnEnded) -> str:
        """Why a turn has no answer."""
        if self.show_errors and turn.error:
            return turn.error
        return "The turn was cancelled." if turn.how == "cancelled" else "The turn failed."

    def interrupt_fields(self, interrupt: UiInterrupt) -> dict[str, Json]:
        """What the person who answers is shown, by names in camel case; empty ones are left out."""
        fields: dict[str, Json] = {
            "interruptId": interrupt.interrupt_id,
            "kind": interrupt.kind,
            "toolCallId": interrupt.call_id,
            "toolName": interrupt.tool_name,
            "arguments": interrupt.arguments,
            "argumentsDigest": interrupt.arguments_digest,
            "hint": interrupt.hint,
            "payload": interrupt.payload,
            "responseSchema": interrupt.response_schema,
            "deadlineMs": interrupt.deadline_ms,
        }
        return {name: value for name, value in fields.items() if value not in (None, "")}
