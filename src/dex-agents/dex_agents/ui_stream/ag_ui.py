"""AG-UI events from a session's turn. Needs the extra ``ag-ui``.

One turn is one run, or several when it pauses for a person: each pause ends a run with what it
waits for, and the next run goes on with the answers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeAlias

from ag_ui.core import events as ag
from ag_ui.core.types import (
    AssistantMessage,
    BaseMessage,
    FunctionCall,
    Message,
    ReasoningMessage,
    ResumeEntry,
    ToolCall,
    ToolMessage,
)

from dex_agents._arguments import check_instance, check_list
from dex_agents._contract import Json, TokenUsage, ToolCallStatus
from dex_agents._errors import InvalidInputError
from dex_agents._session.client import AgentSessionClient
from dex_agents.ui_stream._answers import pending_interrupts
from dex_agents.ui_stream._changes import (
    CallFinished,
    CallRequested,
    CallStarted,
    Change,
    ModelCallBegan,
    ModelCallEnded,
    ModelCallReplaced,
    Notice,
    PartBegan,
    PartEnded,
    PartGrew,
    PartKind,
    TurnBegan,
    TurnEnded,
    TurnPaused,
    TurnResumed,
    UiInterrupt,
)
from dex_agents.ui_stream._options import UiStreamOptions

__all__ = ["AgUiEncoder", "answer_resume"]

_Shown: TypeAlias = AssistantMessage | ReasoningMessage | ToolMessage
_REASONS = {"approval": "tool_call", "input": "input_required"}


class AgUiEncoder:
    """Events of the runs of one turn.

    Args:
        session_id: Whose turn it is; the thread of the runs.
        run_id: ``RunAgentInput.run_id``; the turn's own name if empty.
        messages: ``RunAgentInput.messages``. With them a model call that is made again is taken
            back by ``MESSAGES_SNAPSHOT``, which has to name the whole conversation.
        options: What of the turn is shown; all of it by default.

    Raises:
        TypeError: An argument is none.
    """

    content_type = "text/event-stream"
    last_frame = ""

    def __init__(
        self,
        session_id: str,
        *,
        run_id: str = "",
        messages: Sequence[Message] = (),
        options: UiStreamOptions | None = None,
    ) -> None:
        check_instance("session_id", session_id, str)
        check_instance("run_id", run_id, str, "RunAgentInput.run_id, or leave it out")
        check_list("messages", messages, BaseMessage, "it is RunAgentInput.messages")
        if options is not None:
            check_instance("options", options, UiStreamOptions)
        self._session_id = session_id
        self._run_id = run_id
        self._earlier = list(messages)
        self._options = options or UiStreamOptions()
        self._messages: dict[str, _Shown] = {}
        self._results: dict[str, str] = {}  # message of each call's result
        self._calls_message = ""  # the text that the calls of a response belong to

    def encode(self, change: Change) -> list[ag.BaseEvent]:
        """The events that tell a change."""
        match change:
            case TurnBegan(turn_id):
                self._run_id = self._run_id or f"{self._session_id}:{turn_id}"
                return [self._run_started()]
            case TurnResumed():
                return [self._run_started()]
            case ModelCallBegan(number):
                self._calls_message = ""
                return [ag.StepStartedEvent(step_name=f"model call {number}")]
            case ModelCallEnded(number):
                return [ag.StepFinishedEvent(step_name=f"model call {number}")]
            case ModelCallReplaced(_, part_ids, call_ids):
                return self._replaced([*part_ids, *call_ids])
            case PartBegan(part_id, kind, agent_name) if self._is_shown(kind):
                return self._part_began(part_id, kind, agent_name)
            case PartGrew(part_id, kind, text) if self._is_shown(kind):
                return [self._part_grew(part_id, kind, text)]
            case PartEnded(part_id, kind) if self._is_shown(kind):
                return _part_ended(part_id, kind)
            case CallRequested():
                return self._requested(change)
            case CallStarted(call_id, _, arguments, is_edited) if is_edited:
                value = {"toolCallId": call_id, "arguments": self._options.input_of(arguments)}
                return [ag.CustomEvent(name="dex.arguments_edited", value=value)]
            case CallFinished():
                return self._finished(change)
            case TurnPaused(interrupts, usage):
                asked = [self._interrupt(interrupt) for interrupt in interrupts]
                outcome = ag.RunFinishedInterruptOutcome(interrupts=asked)
                return [self._run_finished(outcome, usage)]
            case TurnEnded():
                return [self._ended(change)]
            case Notice(name, data):
                return [ag.CustomEvent(name=f"dex.{name}", value=dict(data))]
        return []

    def is_end(self, change: Change) -> bool:
        """Whether the response ends behind this change."""
        return isinstance(change, (TurnEnded, TurnPaused))

    def to_text(self, event: ag.BaseEvent) -> str:
        """An event as the data of one server-sent event."""
        return event.model_dump_json(by_alias=True)

    def broken(self) -> ag.BaseEvent:
        """The event for a stream that cannot go on; the turn itself does."""
        text = "The connection to the session broke off."
        return ag.RunErrorEvent(message=text, code="connection_lost")

    def _is_shown(self, kind: PartKind) -> bool:
        return kind == "text" or self._options.show_reasoning

    def _run_started(self) -> ag.BaseEvent:
        return ag.RunStartedEvent(thread_id=self._session_id, run_id=self._run_id)

    def _run_finished(
        self,
        outcome: ag.RunFinishedInterruptOutcome
        | ag.RunFinishedSuccessOutcome
        | ag.RunFinishedCancelledOutcome,
        usage: TokenUsage,
    ) -> ag.BaseEvent:
        return ag.RunFinishedEvent(
            thread_id=self._session_id, run_id=self._run_id, outcome=outcome, usage=_usage(usage)
        )

    def _part_began(self, part_id: str, kind: PartKind, agent_name: str) -> list[ag.BaseEvent]:
        if kind == "reasoning":
            self._messages[part_id] = ReasoningMessage(id=part_id, content="")
            return [
                ag.ReasoningStartEvent(message_id=part_id),
                ag.ReasoningMessageStartEvent(message_id=part_id),
            ]
        name = agent_name or None
        self._calls_message = part_id
        self._messages[part_id] = AssistantMessage(id=part_id, content="", name=name)
        return [ag.TextMessageStartEvent(message_id=part_id, role="assistant", name=name)]

    def _part_grew(self, part_id: str, kind: PartKind, text: str) -> ag.BaseEvent:
        message = self._messages[part_id]
        assert isinstance(message, (AssistantMessage, ReasoningMessage))
        message.content = (message.content or "") + text
        if kind == "reasoning":
            return ag.ReasoningMessageContentEvent(message_id=part_id, delta=text)
        return ag.TextMessageContentEvent(message_id=part_id, delta=text)

    def _requested(self, call: CallRequested) -> list[ag.BaseEvent]:
        parent = self._calls_message = self._calls_message or call.call_id
        text = json.dumps(self._options.input_of(call.arguments), ensure_ascii=False)
        message = self._messages.setdefault(parent, AssistantMessage(id=parent))
        assert isinstance(message, AssistantMessage)
        function = FunctionCall(name=call.tool_name, arguments=text)
        message.tool_calls = [
            *(message.tool_calls or ()),
            ToolCall(id=call.call_id, function=function),
        ]
        return [
            ag.ToolCallStartEvent(
                tool_call_id=call.call_id, tool_call_name=call.tool_name, parent_message_id=parent
            ),
            ag.ToolCallArgsEvent(tool_call_id=call.call_id, delta=text),
            ag.ToolCallEndEvent(tool_call_id=call.call_id),
        ]

    def _finished(self, call: CallFinished) -> list[ag.BaseEvent]:
        if call.status == ToolCallStatus.SUCCEEDED:
            output = self._options.output_of(call.output)
            content = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
            error = None
        else:
            content = error = self._options.error_of_call(call)
        taken_back: list[ag.BaseEvent] = []
        message_id = f"{call.call_id}:result"
        if earlier := self._results.get(call.call_id):
            message_id = f"{earlier}+"
            taken_back = self._replaced([earlier])
        self._results[call.call_id] = message_id
        self._messages[message_id] = ToolMessage(
            id=message_id, content=content, tool_call_id=call.call_id, error=error
        )
        result = ag.ToolCallResultEvent(
            message_id=message_id,
            tool_call_id=call.call_id,
            content=content,
            role="tool",
            metadata={"status": call.status},
        )
        return [*taken_back, result]

    def _replaced(self, ids: Sequence[str]) -> list[ag.BaseEvent]:
        for message_id in ids:
            self._messages.pop(message_id, None)
        self._calls_message = ""
        void = ag.CustomEvent(name="dex.replaced", value={"messageIds": list(ids)})
        if not self._earlier:
            return [void]
        kept = [*self._earlier, *self._messages.values()]
        return [void, ag.MessagesSnapshotEvent(messages=kept)]

    def _interrupt(self, interrupt: UiInterrupt) -> ag.Interrupt:
        schema = interrupt.response_schema
        deadline = interrupt.deadline_ms
        expires = None
        if deadline is not None:
            expires = datetime.fromtimestamp(deadline / 1_000, tz=UTC).isoformat()
        return ag.Interrupt(
            id=interrupt.interrupt_id,
            reason=_REASONS.get(interrupt.kind, f"dex:{interrupt.kind}"),
            message=interrupt.hint or None,
            tool_call_id=interrupt.call_id,
            response_schema=schema if isinstance(schema, dict) else None,
            expires_at=expires,
            metadata=self._options.interrupt_fields(interrupt),
        )

    def _ended(self, turn: TurnEnded) -> ag.BaseEvent:
        if turn.how == "completed":
            return self._run_finished(ag.RunFinishedSuccessOutcome(), turn.usage)
        if turn.how == "cancelled":
            return self._run_finished(ag.RunFinishedCancelledOutcome(), turn.usage)
        return ag.RunErrorEvent(
            message=self._options.error_of_turn(turn), code="turn_failed", usage=_usage(turn.usage)
        )


def _part_ended(part_id: str, kind: PartKind) -> list[ag.BaseEvent]:
    if kind == "text":
        return [ag.TextMessageEndEvent(message_id=part_id)]
    return [
        ag.ReasoningMessageEndEvent(message_id=part_id),
        ag.ReasoningEndEvent(message_id=part_id),
    ]


def _usage(usage: TokenUsage) -> list[ag.TokenUsage]:
    return [ag.TokenUsage(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)]


async def answer_resume(
    sessions: AgentSessionClient, session_id: str, entries: Sequence[ResumeEntry]
) -> list[str]:
    """Answer what ``RunAgentInput.resume`` answers; returns the ids, for ``after_interrupts``.

    An approval takes ``True``, ``False`` or ``{"approved": bool, "message": str, "arguments": …,
    "payload": …, "argumentsDigest": str}`` as payload, as :meth:`AgentSessionClient.resolve_interrupt`
    does; a cancelled entry rejects it, or withholds a credential. What is not pending any more is
    left alone, so the same request may come twice.

    Args:
        sessions: The client of the sessions.
        session_id: The session that is answered.
        entries: ``RunAgentInput.resume``.

    Raises:
        TypeError: ``entries`` is no list of ``ResumeEntry``.
        InterruptError, InvalidInputError: An answer does not fit; the ones before it were taken.
    """
    check_instance("sessions", sessions, AgentSessionClient)
    check_list("entries", entries, ResumeEntry, "it is RunAgentInput.resume")
    pending = {i.interrupt_id: i for i in await pending_interrupts(sessions, session_id)}
    for entry in entries:
        interrupt = pending.pop(entry.interrupt_id, None)
        if interrupt is None:
            continue
        given = entry.payload
        if interrupt.kind == "approval":
            fields: dict[str, Json] = {"approved": given is not False}
            if isinstance(given, dict):
                fields = given
            approved = entry.status == "resolved" and fields.get("approved") is True
            await sessions.resolve_interrupt(
                session_id,
                entry.interrupt_id,
                approved=approved,
                message=fields.get("message"),
                payload=fields.get("payload"),
                arguments_digest=fields.get("argumentsDigest"),
                arguments=fields.get("arguments") if approved else None,
            )
        elif interrupt.kind == "credential":
            if entry.status != "cancelled":
                # Whoever may name a credential may use it, so a browser's word is not enough.
                raise InvalidInputError(
                    f"interrupt {entry.interrupt_id!r} asks for a credential; let the application "
                    "choose it and call provide_credential"
                )
            await sessions.resolve_interrupt(session_id, entry.interrupt_id, approved=False)
        elif entry.status == "cancelled":
            raise InvalidInputError(
                f"interrupt {entry.interrupt_id!r} is a question, which cannot be cancelled alone; "
                "answer it, or cancel the turn"
            )
        else:
            await sessions.answer_question(session_id, entry.interrupt_id, given)
    return [entry.interrupt_id for entry in entries]
