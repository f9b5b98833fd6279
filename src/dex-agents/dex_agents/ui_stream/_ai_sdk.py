"""The UI message stream of the AI SDK (npm package ``ai``): changes as parts of its protocol."""

from __future__ import annotations

import json
from typing import Any, Literal, TypeAlias

from dex_agents._arguments import check_instance, shown
from dex_agents._contract import Json, TokenUsage, ToolCallStatus
from dex_agents.ui_stream._changes import (
    CallFinished,
    CallRequested,
    CallStarted,
    Change,
    InterruptAsked,
    InterruptClosed,
    ModelCallBegan,
    ModelCallEnded,
    ModelCallReplaced,
    Notice,
    PartBegan,
    PartEnded,
    PartGrew,
    TurnBegan,
    TurnEnded,
    TurnPaused,
    UiInterrupt,
)
from dex_agents.ui_stream._options import UiStreamOptions

AiSdkVersion: TypeAlias = Literal[5, 6, 7]
"""Major version of the npm package ``ai``."""
AI_SDK_HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}
"""What an HTTP answer has besides ``content-type: text/event-stream``."""
Part: TypeAlias = dict[str, Any]


class AiSdkEncoder:
    """Parts of one assistant message, which is one turn.

    Args:
        session_id: Whose turn it is; part of the message's id.
        version: Major version of the npm package that reads the stream. 6 has parts for approvals;
            7 has one for an answer to them, and one that takes back a model call.
        options: What of the turn is shown; all of it by default.
        ends_when_paused: Whether a response ends where the turn waits for a person, as ``useChat``
            expects it; else it goes on behind the answer.

    Raises:
        TypeError, ValueError: An argument is none.
    """

    content_type = "text/event-stream"
    last_frame = "[DONE]"

    def __init__(
        self,
        session_id: str,
        *,
        version: AiSdkVersion = 7,
        options: UiStreamOptions | None = None,
        ends_when_paused: bool = True,
    ) -> None:
        if isinstance(version, bool) or version not in (5, 6, 7):
            raise ValueError(f"version must be 5, 6 or 7, got {shown(version)}")
        check_instance("session_id", session_id, str)
        if options is not None:
            check_instance("options", options, UiStreamOptions)
        if not isinstance(ends_when_paused, bool):
            raise TypeError(
                f"ends_when_paused must be True or False, got {shown(ends_when_paused)}"
            )
        self._session_id = session_id
        self._version = version
        self._options = options or UiStreamOptions()
        self._ends_when_paused = ends_when_paused
        self._began_calls = 0  # step-start parts that the message has

    def encode(self, change: Change) -> list[Part]:
        """The parts that tell a change."""
        shown = self._options
        match change:
            case TurnBegan(turn_id, text):
                message = f"{self._session_id}:{turn_id}"
                metadata = {"turnId": turn_id, "userText": text}
                return [{"type": "start", "messageId": message, "messageMetadata": metadata}]
            case ModelCallBegan():
                self._began_calls += 1
                return [{"type": "start-step"}]
            case ModelCallReplaced():
                return self._replaced()
            case ModelCallEnded():
                return [{"type": "finish-step"}]
            case PartBegan(part_id, kind) if self._is_shown(kind):
                return [{"type": f"{kind}-start", "id": part_id}]
            case PartGrew(part_id, kind, text) if self._is_shown(kind):
                return [{"type": f"{kind}-delta", "id": part_id, "delta": text}]
            case PartEnded(part_id, kind) if self._is_shown(kind):
                return [{"type": f"{kind}-end", "id": part_id}]
            case CallRequested(call_id, tool_name, _, arguments):
                return [_input(call_id, tool_name, shown.input_of(arguments))]
            case CallStarted():
                return self._started(change)
            case CallFinished():
                return [self._finished(change)]
            case InterruptAsked(interrupt):
                return self._asked(interrupt)
            case InterruptClosed(interrupt, outcome):
                return self._closed(interrupt, outcome)
            case TurnPaused(_, usage) if self._ends_when_paused:
                return [_finish("tool-calls", usage)]
            case TurnEnded():
                return self._ended(change)
            case Notice(name, data):
                return [{"type": "data-notice", "data": {"name": name, **data}, "transient": True}]
        return []

    def is_end(self, change: Change) -> bool:
        """Whether the response ends behind this change."""
        return isinstance(change, TurnEnded) or (
            self._ends_when_paused and isinstance(change, TurnPaused)
        )

    def to_text(self, part: Part) -> str:
        """A part as the data of one server-sent event."""
        return json.dumps(part, ensure_ascii=False, separators=(",", ":"))

    def broken(self) -> Part:
        """The part for a stream that cannot go on; the turn itself does."""
        return {"type": "error", "errorText": "The connection to the session broke off."}

    def _is_shown(self, kind: str) -> bool:
        return kind == "text" or self._options.show_reasoning

    def _replaced(self) -> list[Part]:
        if self._version >= 7:
            return [{"type": "reset-step"}]
        # No part takes anything back here, so it is said what is void.
        void = self._began_calls - 1
        self._began_calls += 1
        return [
            {"type": "finish-step"},
            {"type": "data-replaced", "id": f"step-{void}", "data": {"step": void}},
            {"type": "start-step"},
        ]

    def _started(self, change: CallStarted) -> list[Part]:
        parts: list[Part] = []
        if change.interrupt_id and self._version == 7:
            approval = {"approvalId": change.interrupt_id, "approved": True}
            parts.append({"type": "tool-approval-response", **approval})
        # In version 6 this also takes the call out of the state in which it asks.
        if change.is_edited or (change.interrupt_id and self._version == 6):
            arguments = self._options.input_of(change.arguments)
            parts.append(_input(change.call_id, change.tool_name, arguments))
        return parts

    def _finished(self, call: CallFinished) -> Part:
        answer: Part = {"toolCallId": call.call_id}
        if call.status == ToolCallStatus.SUCCEEDED:
            output = self._options.output_of(call.output)
            return {"type": "tool-output-available", **answer, "output": output, "dynamic": True}
        if call.status == ToolCallStatus.REJECTED and self._version >= 6:
            return {"type": "tool-output-denied", **answer}
        error = self._options.error_of_call(call)
        return {"type": "tool-output-error", **answer, "errorText": error, "dynamic": True}

    def _asked(self, interrupt: UiInterrupt) -> list[Part]:
        parts = [self._interrupt(interrupt, "pending")]
        if interrupt.kind == "approval" and self._version >= 6:
            request = {"approvalId": interrupt.interrupt_id, "toolCallId": interrupt.call_id}
            parts.append({"type": "tool-approval-request", **request})
        return parts

    def _closed(self, interrupt: UiInterrupt, outcome: str) -> list[Part]:
        parts = [self._interrupt(interrupt, outcome)]
        if outcome == "rejected" and interrupt.kind == "approval" and self._version == 7:
            answer = {"approvalId": interrupt.interrupt_id, "approved": False}
            parts.append({"type": "tool-approval-response", **answer})
        return parts

    def _interrupt(self, interrupt: UiInterrupt, state: str) -> Part:
        data = {**self._options.interrupt_fields(interrupt), "state": state}
        return {"type": "data-interrupt", "id": interrupt.interrupt_id, "data": data}

    def _ended(self, turn: TurnEnded) -> list[Part]:
        if turn.how == "completed":
            return [_finish("stop", turn.usage)]
        if turn.how == "cancelled":
            usage = {"type": "message-metadata", "messageMetadata": _metadata(turn.usage)}
            return [usage, {"type": "abort", "reason": self._options.error_of_turn(turn)}]
        error = {"type": "error", "errorText": self._options.error_of_turn(turn)}
        return [error, _finish("error", turn.usage)]


def _input(call_id: str, tool_name: str, arguments: Json) -> Part:
    call = {"toolCallId": call_id, "toolName": tool_name, "input": arguments}
    return {"type": "tool-input-available", **call, "dynamic": True}


def _finish(reason: str, usage: TokenUsage) -> Part:
    return {"type": "finish", "finishReason": reason, "messageMetadata": _metadata(usage)}


def _metadata(usage: TokenUsage) -> Json:
    return {
        "usage": {
            "inputTokens": usage.input_tokens,
            "outputTokens": usage.output_tokens,
            "modelCalls": usage.model_calls,
        }
    }
