"""The contract between the session Flow and an agent framework's adapter.

The Flow owns durability: which Step runs what, what is stored, what is retried. A runner owns the
framework: it turns stored items into a model call and a tool call into a result. A runner keeps
nothing between two calls; everything it needs comes with the request and everything that must last
goes back in the outcome.

``Json`` values are what :func:`json.dumps` accepts with ``allow_nan=False``; key order is kept in
storage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeAlias, runtime_checkable

from dex_agents._effects import ToolEffect
from dex_agents._media.reference import ImageReference

Json: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, list of Json, dict of str to Json."""


class MessageRole(StrEnum):
    """Whom a stored message shows as."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True)
class AgentMessage:
    """One stored item of a session's history.

    Attributes:
        role: Whom the message shows as.
        framework_item: The framework's own item as JSON; the only input from which history is
            rebuilt.
        text: Display text, empty when there is none.
        tool_name: Set only if the item holds exactly one call or one response.
        tool_call_id: Set with ``tool_name``.
        turn_id: The turn that stored it; empty until the Flow stores the message.
        sequence: Position in the session from 0; -1 until stored.
        images: The images of the item, in order.
        origin_session_id: The session whose turn it was, if it came here with a fork; else empty.
    """

    role: MessageRole
    framework_item: Json
    text: str = ""
    tool_name: str | None = None
    tool_call_id: str | None = None
    turn_id: str = ""
    sequence: int = -1
    images: Sequence[ImageReference] = ()
    origin_session_id: str = ""


@dataclass(frozen=True)
class TokenUsage:
    """Tokens and requests of model calls. Counts add up with ``+``."""

    input_tokens: int = 0
    output_tokens: int = 0
    model_calls: int = 0

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.model_calls + other.model_calls,
        )


@dataclass(frozen=True)
class ModelCallMetadata:
    """What a ``RunModel`` attempt learned about its model call, for tracing.

    ``None`` means not known.
    """

    request_model: str | None = None
    response_model: str | None = None
    finish_reasons: tuple[str, ...] = ()
    provider_name: str | None = None
    response_id: str | None = None


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


@dataclass(frozen=True)
class ToolCallsRequested:
    """Outcome: the turn pauses until each call has its record.

    Attributes:
        calls: At least one call, in the model's order.
        run_state: What the next ``RunModel`` of the turn needs; stored, handed back as it is.
        tool_context: What every tool Step of this response needs, such as session state; stored
            once per response, handed back in :class:`DeferredToolExecution`.
        took_steering: Whether the model has read ``RunModelRequest.steering``; the runner keeps
            these messages in ``run_state``, and among the messages of the completed turn.
    """

    calls: Sequence[RequestedToolCall]
    run_state: Json
    tool_context: Json = None
    usage: TokenUsage = TokenUsage()
    metadata: ModelCallMetadata = ModelCallMetadata()
    took_steering: bool = False


@dataclass(frozen=True)
class ContinueTurn:
    """Outcome: this attempt's model call is used up; run the model again with this run state.

    Attributes:
        took_steering: See :class:`ToolCallsRequested`.
    """

    run_state: Json
    usage: TokenUsage = TokenUsage()
    metadata: ModelCallMetadata = ModelCallMetadata()
    took_steering: bool = False


@dataclass(frozen=True)
class TurnCompleted:
    """Outcome: the turn is over.

    Attributes:
        messages: Everything the turn adds to the history, its user message included, in order.
        final_text: The answer's text for display, possibly empty.
        took_steering: See :class:`ToolCallsRequested`.
    """

    messages: Sequence[AgentMessage]
    final_text: str = ""
    usage: TokenUsage = TokenUsage()
    metadata: ModelCallMetadata = ModelCallMetadata()
    took_steering: bool = False


RunModelOutcome: TypeAlias = ToolCallsRequested | ContinueTurn | TurnCompleted


class ToolCallStatus(StrEnum):
    """How a call ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REJECTED = "rejected"
    OUTCOME_UNKNOWN = "outcome_unknown"


@dataclass(frozen=True)
class ToolCallRecord:
    """The one durable result of one call.

    Attributes:
        output: JSON result of a ``succeeded`` call, exactly as the tool gave it.
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


@dataclass(frozen=True)
class HistorySummary:
    """What stands for a session's older turns in the model's input.

    Attributes:
        text: The summary, in whatever form the runner needs to go on from it.
        usage: Tokens and requests of the summary call.
    """

    text: str
    usage: TokenUsage = TokenUsage()


@dataclass(frozen=True)
class CompactionRequest:
    """What one summary call gets.

    Attributes:
        summary: The summary of the turns before ``messages``, or ``None``.
        messages: The turns to summarize, oldest first; not to be changed.
    """

    session_id: str
    step_execution_id: str
    summary: HistorySummary | None
    messages: Sequence[AgentMessage]


@runtime_checkable
class HistoryCompactor(Protocol):
    """What a runner has besides if its sessions can be compacted."""

    def estimated_overhead_tokens(self) -> int:
        """Instructions and tool definitions that go with every model call, as far as it sees them."""

    def blocks_compaction(self, messages: Sequence[AgentMessage]) -> bool:
        """Whether something is open that would be lost with these messages."""

    async def summarize(self, request: CompactionRequest) -> HistorySummary:
        """Make one model call that sums up the given turns, and the summary before them.

        Raises:
            Exception: It failed; it may be tried again, and the turn goes on without it.
        """


@runtime_checkable
class StateMessageBuilder(Protocol):
    """What a runner has besides if sessions can begin with a state."""

    def build_state_message(self, state: Mapping[str, Json]) -> AgentMessage:
        """The item that stands before all others and gives the session its first state.

        Raises:
            ValueError: No session can begin with this; the text names the key.
        """


@runtime_checkable
class TurnRemover(Protocol):
    """What a runner has besides if more than the history must follow a rewind."""

    def note_removed(self, note: Json, messages: Sequence[AgentMessage]) -> Json:
        """What later turns must know of turns that a rewind removes; runs in the client.

        Args:
            note: What it answered for turns that were removed earlier, or ``None``.
            messages: Some of the messages that are removed, oldest first.

        Returns:
            A JSON value for all of them, or ``None``; at most 256 KiB.
        """


class AgentEventWriter(Protocol):
    """Where a runner sends live events, from any thread.

    Never blocks, never fails, never decides anything durable.
    """

    def emit(self, event_type: str, **fields: Json) -> None:
        """Send one event; the session adds turn, Step execution and attempt.

        Types of a runner: ``text_delta`` and ``reasoning_delta`` (``text``, ``agent_name``),
        ``tool_call_started`` and ``tool_call_finished`` for calls without a Step (``tool_call_id``,
        ``tool_name``, ``agent_name``).
        """


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


@dataclass(frozen=True)
class RunModelRequest:
    """What one ``RunModel`` attempt gets.

    Attributes:
        session_id: Flow ID, also the framework's session id.
        turn_id: Id of the open turn, unique in the session.
        step_execution_id: Id of this ``RunModel`` execution, equal for all its attempts, unique in
            the session; a good prefix for deterministic ids.
        attempt: 1 for the first attempt.
        history: Messages of finished turns, oldest first. Other attempts and sessions read the
            same objects: do not change them.
        user_message: ``framework_item`` of the turn's user message, as :meth:`build_user_message`
            made it.
        run_state: ``None`` in the first ``RunModel`` of a turn, else the run state of the outcome
            before.
        records: Records of the calls of the outcome before, in the model's order; else empty.
        model_calls_so_far: Model calls of earlier ``RunModel`` Steps of this turn.
        events: Live events.
        summary: What stands for the turns before ``history``, or ``None``.
        steering: ``framework_item`` of each message that the user sent into the open turn, oldest
            first, as :meth:`build_user_message` made it. The model reads them behind everything
            else; the outcome says so with ``took_steering``. Messages that nobody took are offered
            again, and open the next turn in the end.
        removed: What :meth:`TurnRemover.note_removed` answered for turns that rewinds have removed.
        checkpoint: What attempts of this ``RunModel`` leave each other, for example answers of
            branches side by side; always set in a session.
    """

    session_id: str
    turn_id: str
    step_execution_id: str
    attempt: int
    history: Sequence[AgentMessage]
    user_message: Json
    run_state: Json
    records: Sequence[ToolCallRecord]
    model_calls_so_far: int
    events: AgentEventWriter
    summary: HistorySummary | None = None
    steering: Sequence[Json] = ()
    removed: Json = None
    checkpoint: StepCheckpoint | None = None


@dataclass(frozen=True)
class DeferredToolExecution:
    """What one attempt of a tool Step gets.

    Attributes:
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


@dataclass(frozen=True)
class ToolExecutionResult:
    """A tool's success.

    Attributes:
        output: The result as a JSON value.
        framework_data: The runner's own data, such as state changes; stored with the record.
        images: Images that the model shall see behind the output, uploaded already.
        interrupt: Set if the call has no result yet. An approval and a credential run the tool
            again with the answer; the answer to anything else becomes the call's output.
    """

    output: Json = None
    framework_data: Json = field(default=None)
    images: Sequence[ImageReference] = ()
    interrupt: InterruptRequest | None = None


@runtime_checkable
class ImageMessageBuilder(Protocol):
    """What a runner has besides if its sessions take images. Its absence refuses them."""

    def build_user_message_with_images(
        self, text: str, images: Sequence[ImageReference]
    ) -> AgentMessage:
        """A message of the user: the text, then the images in order."""


@runtime_checkable
class AgentFrameworkRunner(Protocol):
    """What an adapter implements. One object serves all sessions of a process at the same time."""

    async def run_model(self, request: RunModelRequest) -> RunModelOutcome:
        """Make at most one model call per agent and branch and say how the turn goes on.

        Stores nothing and may be repeated at any time with an equal request.

        Raises:
            AgentTurnError: The turn cannot go on; it fails at once, without retry.
            ModelCallError: The call failed in a way that may pass; retried, honouring
                ``retry_after_s``.
            Exception: Anything else also fails the attempt and is retried by the session's policy.
        """

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        """Run the tool once.

            Blocking tools run in a thread, so that the loop goes on.

            Raises:
        xStartedError: The tool was not entered, for example because no tool has the name;
                    recorded as ``failed`` and not run.
                Exception: Fails the attempt: the effect decides what happens.
        """

    def build_user_message(self, text: str) -> AgentMessage:
        """A message of the user in the framework's own form. Also used for notes of the session."""
