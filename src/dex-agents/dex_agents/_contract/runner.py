"""What an adapter implements, and what it gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dex_agents._contract.calls import (
    AgentEventWriter,
    DeferredToolExecution,
    StepCheckpoint,
    ToolCallRecord,
    ToolExecutionResult,
)
from dex_agents._contract.messages import AgentMessage, HistorySummary, Json
from dex_agents._contract.outcomes import RunModelOutcome


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
            ToolExecutionError: A failure for the model; recorded as ``failed``, never retried.
            ToolNotStartedError: The tool was not entered, for example because no tool has the name;
                recorded as ``failed`` and not run.
            ToolOutcomeUnknownError: The tool was entered and nobody can say what it did; not
                retried.
            Exception: Fails the attempt: the effect decides what happens.
        """

    def build_user_message(self, text: str) -> AgentMessage:
        """A message of the user in the framework's own form. Also used for notes of the session."""
