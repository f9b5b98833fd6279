"""What a client sees of a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from dex_agents._contract import AgentMessage, Json, TokenUsage
from dex_agents._session.live_turns import is_removed
from dex_agents._session.records import turn_number

SessionStatus = Literal["idle", "running", "waiting", "closed"]


@dataclass(frozen=True)
class PendingInterrupt:
    """Something that a session waits for a person to answer.

    Attributes:
        interrupt_id: Name of the interrupt; the same after any crash.
        kind: ``"approval"``: may this tool call run? ``"input"``: a question. ``"long_running"``:
            the result of work that a tool has started. These two take ``answer_question``.
            ``"credential"``: a secret that a tool needs; takes ``provide_credential``.
        turn_id: The open turn, which goes on with the answer.
        tool_name, tool_call_id: The call that is asked for, or that asks.
        arguments: Its arguments.
        arguments_digest: SHA-256 (hex) of tool name and arguments; hand it to
            ``resolve_interrupt`` so that an answer counts only for what was shown.
        hint: What the tool or policy says to the person, or empty.
        requested_at: When it was asked, in UTC.
        deadline: When it expires, an approval as a rejection, or ``None``.
        payload: What is shown besides, such as the early value of a long-running tool, or which
            credential is asked for.
        response_schema: JSON Schema that an answer must fit, or ``None``.
        agent_name: The agent that asks.
        node_path: Where in the agent graph it is asked, such as ``outer@1/review@2`` of ADK. Agents
            below a ``SequentialAgent``, ``LoopAgent`` or ``ParallelAgent`` have no path of ADK; theirs
            are the names from the root down, such as ``steps/writer``.
    """

    interrupt_id: str
    kind: str
    turn_id: str
    tool_name: str
    tool_call_id: str
    arguments: Mapping[str, Json]
    arguments_digest: str
    agent_name: str = ""
    hint: str = ""
    requested_at: datetime | None = None
    deadline: datetime | None = None
    payload: Json = None
    response_schema: Json = None
    node_path: str = ""


@dataclass(frozen=True)
class FinishedTurn:
    """How a finished turn ended.

    Attributes:
        turn_id: Its id, such as ``t3``.
        final_text: The answer's text, its first 256 KiB; ``list_messages`` has all of it.
        error: Why it failed or that it was cancelled; empty for an answered one.
        is_cancelled: Whether ``cancel_turn`` or ``close_session`` ended it.
        output: What the agent returned besides its text, as JSON, or ``None``: of ADK the
            ``output`` of the event that holds the root Workflow's output. One of more than 256 KiB
            shows as ``{"truncated": true, "original_bytes": n, "preview": text}``.
    """

    turn_id: str
    final_text: str = ""
    error: str = ""
    is_cancelled: bool = False
    output: Json = None


@dataclass(frozen=True)
class AgentSnapshot:
    """Where a session stands, as of one moment.

    Attributes:
        session_id: The session.
        status: ``"idle"``: waits for a user message; ``"running"``: a turn is open, or a message
            waits for its own; ``"waiting"``: the open turn waits for a person; ``"closed"``: the
            session has ended, and the rest shows how it stood then.
        turn_id: The open turn, or empty.
        turns_done: Number of the newest turn that has ended. It never goes back: failed turns count,
            and so do those that a rewind has removed.
        pending_interrupts: What the open turn waits for; nothing once the session has ended.
        revision: Grows whenever a turn ends or starts to wait for a person.
        usage: Tokens and model calls of finished turns.
        last_turn: How the newest turn ended that is still part of the conversation: behind a rewind
            or in a fork the newest that is left. ``None`` before the end of the first one, and where
            that is not known any more: after a rewind to a turn that an earlier release has stored,
            or whose messages were deleted (``CompactionPolicy.retained_turns``).
        queued_messages: User messages that wait for their turn; of a closed session those that
            were dropped.
        close_reason: Why it was closed, as far as that was said.
        forked_from: Session that it was forked from, or empty.
        removed_turns: First and last number of each range of turns that rewinds have removed.
    """

    session_id: str
    status: SessionStatus
    turn_id: str
    turns_done: int
    revision: int
    pending_interrupts: Sequence[PendingInterrupt] = ()
    usage: TokenUsage = field(default_factory=TokenUsage)
    last_turn: FinishedTurn | None = None
    queued_messages: int = 0
    close_reason: str = ""
    removed_turns: Sequence[tuple[int, int]] = ()
    forked_from: str = ""


@dataclass(frozen=True)
class ClosedSession:
    """What the end of a session cut off.

    Attributes:
        dropped_messages: User messages that were accepted and never got a turn.
        cancelled_turn: Id of the turn that was open, or empty.
    """

    dropped_messages: int
    cancelled_turn: str


@dataclass(frozen=True)
class RewoundSession:
    """What a rewind did, and where the session stands by it.

    Attributes:
        session_id: The session.
        removed_turns: Ids of the turns that it removed, oldest first.
        last_turn_id: The newest turn that is left.
        next_turn_id: The turn that the next message opens.
    """

    session_id: str
    removed_turns: Sequence[str]
    last_turn_id: str
    next_turn_id: str


@dataclass(frozen=True)
class ForkedSession:
    """A session that was made from the turns of another one.

    Attributes:
        session_id: The new session.
        source_session_id: The session that it was made from.
        last_turn_id: The newest turn that it has.
        next_turn_id: The turn that its first message opens.
    """

    session_id: str
    source_session_id: str
    last_turn_id: str
    next_turn_id: str


@dataclass(frozen=True)
class MessagePage:
    """Messages of finished turns, oldest first.

    Attributes:
        messages: All messages of each turn that the page has.
        next_before_turn: Hand it to ``list_messages`` for the turns before these, or ``None`` at
            the beginning.
    """

    messages: Sequence[AgentMessage]
    next_before_turn: int | None


@dataclass(frozen=True)
class AgentEvent:
    """One live event. Group text by ``step_execution_id`` and ``attempt``: a retry sends it again.

    Attributes:
        type: For example ``text_delta``, ``tool_call_started``, ``turn_completed``.
        turn_id: The turn that it belongs to.
        seq: Position within the attempt.
        data: The rest, by type.
    """

    type: str
    turn_id: str
    step_execution_id: str
    attempt: int
    seq: int
    data: Mapping[str, Json]


@dataclass(frozen=True)
class AgentEventBatch:
    """Events that were sent together, and the token to go on from.

    Attributes:
        events: In order.
        resume_token: Hand it to ``read_events`` for what comes behind these.
    """

    events: Sequence[AgentEvent]
    resume_token: str


def snapshot_from_json(session_id: str, data: Json) -> AgentSnapshot:
    """A snapshot as the RPC answers it."""
    pending = tuple(_interrupt(item) for item in data["pending_interrupts"])
    status: SessionStatus = "idle"
    if data["turn_id"] or data["queued_messages"] or data["is_starting"]:
        status = "waiting" if pending else "running"
    last, closing = data["last_turn"], data["closing"]
    removed = tuple((first, end) for first, end in data.get("removed") or ())
    if closing is not None:
        status = "closed"
    return AgentSnapshot(
        session_id=session_id,
        status=status,
        turn_id=data["turn_id"],
        turns_done=data["turns_done"],
        revision=data["revision"],
        pending_interrupts=pending,
        usage=TokenUsage(**data["usage"]),
        last_turn=_last_turn(last, removed),
        queued_messages=data["queued_messages"],
        close_reason=closing["reason"] if closing else "",
        removed_turns=removed,
        forked_from=(data.get("forked_from") or {}).get("source", ""),
    )


def _last_turn(data: Json, removed: Sequence[tuple[int, int]]) -> FinishedTurn | None:
    # An earlier release left a removed turn there.
    if not data or is_removed(removed, turn_number(data["turn_id"])):
        return None
    return FinishedTurn(
        turn_id=data["turn_id"],
        final_text=data["final_text"],
        error=data["error"],
        is_cancelled=data.get("is_cancelled", False),
        output=data.get("output"),
    )


def _interrupt(data: Json) -> PendingInterrupt:
    return PendingInterrupt(
        interrupt_id=data["interrupt_id"],
        kind=data["kind"],
        turn_id=data["turn_id"],
        tool_name=data["tool_name"],
        tool_call_id=data["call_id"],
        arguments=data["arguments"],
        arguments_digest=data["arguments_digest"],
        agent_name=data["agent_name"],
        hint=data["hint"],
        requested_at=_time(data["requested_ms"]),
        deadline=_time(data["deadline_ms"]),
        payload=data.get("payload"),
        response_schema=data.get("response_schema"),
        node_path=data.get("node_path", ""),
    )


def _time(milliseconds: int | None) -> datetime | None:
    if not milliseconds:
        return None
    return datetime.fromtimestamp(milliseconds / 1_000, tz=UTC)


def event_from_json(data: Json) -> AgentEvent:
    """An event as the Stream carries it."""
    known = ("type", "turn_id", "step_execution_id", "attempt", "seq")
    return AgentEvent(
        **{name: data[name] for name in known},
        data={key: value for key, value in data.items() if key not in known},
    )
