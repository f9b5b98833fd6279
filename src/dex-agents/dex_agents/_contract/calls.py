"""Tool calls: what a runner asks for, what a Step runs, what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from dex_agents._arguments import check_fields
from dex_agents._contract.messages import Json
from dex_agents._effects import ToolEffect
from dex_agents._errors import ContractTypeError
from dex_agents._media.reference import ImageReference

_COUNT_OR_NONE = (int, type(None))


class InterruptKind(StrEnum):
    """What a session waits for."""

    APPROVAL = "approval"
    """May this call run?"""
    INPUT = "input"
    """An answer to a question."""
    LONG_RUNNING = "long_running"
    """The result of work that was started outside."""
    CREDENTIAL = "credential"
    """The name under which the application keeps a secret that the tool needs."""


@dataclass(frozen=True)
class InterruptRequest:
    """Something that a call waits for.

    Attributes:
        kind: What is waited for.
        hint: Text for the person who answers, or empty.
        payload: What they are shown besides, such as the early value of a long-running tool.
        response_schema: JSON Schema that the answer must fit, or ``None``.
        framework_data: The runner's own data; goes into the record with the answer.
    """

    kind: InterruptKind
    hint: str = ""
    payload: Json = None
    response_schema: Json = None
    framework_data: Json = None

    def __post_init__(self) -> None:
        check_fields(self, {"kind": InterruptKind, "hint": str}, ContractTypeError)


_CALL: dict[str, type | tuple[type, ...]] = {
    "call_id": str,
    "tool_name": str,
    "arguments": Mapping,
    "effect": ToolEffect,
    "requires_approval": bool,
    "agent_name": str,
    "hint": str,
    "timeout_s": _COUNT_OR_NONE,
    "interrupt": (InterruptRequest, type(None)),
    "maximum_attempts": _COUNT_OR_NONE,
    "retry_interval_s": _COUNT_OR_NONE,
    "maximum_retry_interval_s": _COUNT_OR_NONE,
    "is_ordered_write": bool,
    "node_path": str,
}


@dataclass(frozen=True)
class RequestedToolCall:
    """One call of a model response that gets a Step of its own.

    Attributes:
        call_id: The id under which the model, the stored items and the record know the call.
        tool_name: Name of the tool as the model called it.
        arguments: Arguments as the model gave them.
        effect: Effect, resolved by the runner.
        requires_approval: Whether a person must approve first, resolved by the runner.
        agent_name: The agent that made the call.
        hint: Text for the person who approves, or empty.
        framework_data: The runner's own data, handed back in :class:`DeferredToolExecution`.
        timeout_s: Seconds one attempt may take; ``None`` takes the session's setting.
        maximum_attempts: Attempts of the call; ``None`` takes the effect's number. Only a read and an
            idempotent write may have more than one.
        retry_interval_s: Seconds before the second attempt; doubles. ``None`` takes the session's
            setting.
        maximum_retry_interval_s: Longest delay between attempts in seconds, or ``None``.
        is_ordered_write: Such calls of one response run one at a time in the model's order; once
            one has not succeeded, the later ones are recorded as skipped.
        interrupt: Set if the call runs no tool but waits for an answer, which becomes its output.
        node_path: Where in the framework's graph the agent runs, or empty; shown to who answers.
    """

    call_id: str
    tool_name: str
    arguments: Mapping[str, Json]
    effect: ToolEffect
    requires_approval: bool
    agent_name: str = ""
    hint: str = ""
    framework_data: Json = None
    timeout_s: int | None = None
    interrupt: InterruptRequest | None = None
    maximum_attempts: int | None = None
    retry_interval_s: int | None = None
    maximum_retry_interval_s: int | None = None
    is_ordered_write: bool = False
    node_path: str = ""

    def __post_init__(self) -> None:
        check_fields(self, _CALL, ContractTypeError)


NOT_STORED_KEY = "not_stored"
"""In the output of a call of which something was lost, says what and why."""


class ToolCallStatus(StrEnum):
    """How a call ended."""

    SUCCEEDED = "succeeded"
    """The tool gave a result."""
    FAILED = "failed"
    """The tool said so, a read had no attempt left, or the tool never ran."""
    REJECTED = "rejected"
    """A person did not approve it, or nobody did in time; the tool did not run."""
    OUTCOME_UNKNOWN = "outcome_unknown"
    """It may have written something, and there is no result."""


@dataclass(frozen=True)
class ToolCallRecord:
    """The one durable result of one call.

    Attributes:
        call_id, tool_name: Of the requested call.
        status: How it ended.
        output: JSON result of a ``succeeded`` call, exactly as the tool gave it unless it was too
            large; ``not_stored`` in it says what else of the call was lost.
        error: Failure text of a ``failed`` call (with the not-run prefix when the tool never ran)
            or the cause of an unknown outcome.
        rejection_message: What the model reads for a ``rejected`` call.
        framework_data: The runner's own data from :class:`ToolExecutionResult`.
        not_run: True when the tool provably never ran.
        attempt: Number of the attempt that ended the call, 0 if none did.
        images: Images of a ``succeeded`` call, in order.
        edited_arguments: What the tool was called with if the person who approved it changed the
            arguments, else ``None``. The model's own are in its call; it should be shown these.
        skipped: True when the call did not run because an ordered write before it did not succeed.
    """

    call_id: str
    tool_name: str
    status: ToolCallStatus
    output: Json = None
    error: str = ""
    rejection_message: str = ""
    framework_data: Json = None
    not_run: bool = False
    attempt: int = 0
    images: Sequence[ImageReference] = ()
    edited_arguments: Mapping[str, Json] | None = None
    skipped: bool = False


class StepCheckpoint(Protocol):
    """A small value of a Step that its next attempt finds when this one dies.

    It is a hint: what was kept last may be lost with the engine.
    """

    @property
    def last(self) -> Json:
        """What was kept last, by this attempt or one before it; ``None`` if nothing was."""

    async def keep(self, value: Json) -> None:
        """Keep a value in place of the one before.

        Returns when the value is on its way to the engine, so that it outlives this process.

        Raises:
            ValueError: It is no JSON value, or too large: a tool's may have a few KiB, what a
                runner keeps of its model calls 64 KiB.
        """


class AgentEventWriter(Protocol):
    """Where a runner sends live events, from any thread.

    Never blocks, never fails, never decides anything durable.
    """

    def emit(self, event_type: str, **fields: Json) -> None:
        """Send one event; the session adds turn, Step execution and attempt.

        Types of a runner: ``text_delta`` and ``reasoning_delta`` (``text``, ``agent_name``),
        ``tool_call_started`` and ``tool_call_finished`` for calls without a Step (``tool_call_id``,
        ``tool_name``, ``agent_name``), ``tool_call_progress`` for what a tool shows before its
        result (``tool_call_id``, ``tool_name``, ``agent_name``, ``author``, ``text``, ``output``,
        ``is_partial``).
        """


@dataclass(frozen=True)
class DeferredToolExecution:
    """What one attempt of a tool Step gets.

    Attributes:
        session_id, turn_id: Whose call it is.
        call_id, tool_name, arguments, effect, agent_name: Of the requested call; ``arguments`` are
            those of the person who approved it if they were changed.
        step_execution_id: The Step, the same for all of its attempts.
        attempt: From 1.
        idempotency_key: ``<session id>/<turn id>/<call id>``, equal for all attempts; a later call
            of the same turn that reuses the call id has ``#2``, ``#3`` … behind it.
        tool_context: From :class:`ToolCallsRequested`.
        framework_data: From :class:`RequestedToolCall`.
        answer: Set if the call runs again because what its tool asked for was answered. Of an
            approval ``{"approved": bool, "message": str or None, "payload": Json}``. Of credentials
            ``{"credentials": [...]}``, oldest first, each with ``reference``, ``state`` and the
            ``request`` that was the interrupt's ``framework_data``. A call that asked for both has
            both.
        checkpoint: What attempts of this call leave each other; always set in a tool Step.
        events: Live events of the Step; always set in a tool Step.
    """

    session_id: str
    turn_id: str
    call_id: str
    tool_name: str
    arguments: Mapping[str, Json]
    effect: ToolEffect
    agent_name: str
    step_execution_id: str
    attempt: int
    idempotency_key: str
    tool_context: Json = None
    framework_data: Json = None
    answer: Json = None
    checkpoint: StepCheckpoint | None = None
    events: AgentEventWriter | None = None


@dataclass(frozen=True)
class ToolExecutionResult:
    """A tool's success. It is not checked: a wrong form must not hide that the tool ran.

    Attributes:
        output: The result as a JSON value.
        framework_data: The runner's own data, such as state changes; stored with the record.
        images: Images that the model shall see behind the output, uploaded already.
        interrupt: Set if the call has no result yet. An approval and a credential run the tool
            again with the answer; the answer to anything else becomes the call's output.
        not_stored: What of the call is lost, each as a text for the model; the record's output has
            them under ``not_stored``.
    """

    output: Json = None
    framework_data: Json = field(default=None)
    images: Sequence[ImageReference] = ()
    interrupt: InterruptRequest | None = None
    not_stored: Sequence[str] = ()
