"""Plays a user: sends messages, answers what a session asks, whatever is down meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypeVar

from dex_agents._arguments import check_callable, check_fields, check_instance, check_seconds
from dex_agents._contract import AgentMessage, Json
from dex_agents._errors import SessionUnavailableError
from dex_agents._session.client import AgentSessionClient
from dex_agents._session.views import PendingInterrupt

_AGAIN_S = 0.05
_T = TypeVar("_T")


@dataclass(frozen=True)
class Approve:
    """The call may run.

    Attributes:
        arguments: Arguments in place of the model's, or ``None`` for those.
        payload: What a tool that asked by itself gets with the approval.
    """

    arguments: Mapping[str, Json] | None = None
    payload: Json = None

    def __post_init__(self) -> None:
        check_fields(self, {"arguments": (Mapping, type(None))})


@dataclass(frozen=True)
class Reject:
    """The call must not run; ``message`` is what the model reads."""

    message: str | None = None

    def __post_init__(self) -> None:
        check_fields(self, {"message": (str, type(None))})


@dataclass(frozen=True)
class Reply:
    """The answer to a question, or the result of long-running work.

    Attributes:
        value: Any JSON value but ``None``.
    """

    value: Json


UserAnswer: TypeAlias = Approve | Reject | Reply
"""What a person answers to an interrupt."""


def approve_all(interrupt: PendingInterrupt) -> UserAnswer:
    """Approves every call; an ``interrupt`` that is a question gets ``{}``."""
    check_instance("interrupt", interrupt, PendingInterrupt, "a snapshot's pending_interrupts are")
    return Approve() if interrupt.kind == "approval" else Reply({})


@dataclass(frozen=True)
class PlayedSession:
    """What a session did.

    Attributes:
        messages: Its whole stored history.
        errors: Why each turn failed, empty for those that were answered.
    """

    messages: Sequence[AgentMessage]
    errors: Sequence[str]


async def play_session(
    sessions: AgentSessionClient,
    session_id: str,
    messages: Sequence[str],
    *,
    answer: Callable[[PendingInterrupt], UserAnswer] = approve_all,
    timeout_s: float = 60.0,
) -> PlayedSession:
    """Start a session and play all messages to the ends of their turns.

    A command that meets an engine or a Worker that is down is given again; each acts once.

    Args:
        sessions: The client of the sessions.
        session_id: Of the session to start.
        messages: At least one; each is sent when the turn of the one before has ended.
        answer: Says what a person answers to an interrupt.
        timeout_s: For all of it, in seconds.

    Raises:
        TypeError, ValueError: An argument has the wrong type, or ``messages`` is empty.
        TimeoutError: It took longer.
        InterruptError: An answer does not fit its interrupt.
        SessionError: A command was refused for another reason than that something was down.
    """
    check_messages(messages)
    check_instance("sessions", sessions, AgentSessionClient)
    check_answering(answer, timeout_s)
    async with asyncio.timeout(timeout_s):
        deadline = time.monotonic() + timeout_s
        player = _Player(sessions, session_id, answer, deadline)
        await _until_taken(lambda: sessions.start_session(session_id, messages[0]))
        errors = [await player.finish_turn(1)]
        for number, message in enumerate(messages[1:], start=2):
            send = partial(
                sessions.send_user_message, session_id, message, message_id=f"message-{number}"
            )
            await _until_taken(send)
            errors.append(await player.finish_turn(number))
        return PlayedSession(await _history(sessions, session_id), errors)


def check_answering(answer: object, timeout_s: object) -> None:
    """How a session is played: raises TypeError, ValueError."""
    check_callable("answer", answer, "of a PendingInterrupt that gives Approve, Reject or Reply")
    check_seconds("timeout_s", timeout_s)


def check_messages(messages: object) -> None:
    """Messages are a list of texts, at least one; a lone text would be sent by its letters."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise TypeError(f"messages must be a list of texts, got {type(messages).__name__}")
    if not messages:
        raise ValueError("messages must hold at least one text")
    for message in messages:
        if not isinstance(message, str):
            raise TypeError(f"messages must hold texts, got {type(message).__name__}")


@dataclass(frozen=True)
class _Player:
    sessions: AgentSessionClient
    session_id: str
    answer: Callable[[PendingInterrupt], UserAnswer]
    deadline: float

    async def finish_turn(self, number: int) -> str:
        """Answer until so many turns have ended; why the last one failed."""
        while True:
            snapshot = await _until_taken(
                lambda: self.sessions.wait_until_settled(
                    self.session_id,
                    turns_done=number,
                    timeout_s=max(0.001, self.deadline - time.monotonic()),
                )
            )
            if snapshot.turns_done >= number:
                return snapshot.last_turn.error if snapshot.last_turn is not None else ""
            for interrupt in snapshot.pending_interrupts:
                await self._answer(interrupt)

    async def _answer(self, interrupt: PendingInterrupt) -> None:
        given = self.answer(interrupt)
        if not isinstance(given, Approve | Reject | Reply):
            raise TypeError(
                f"answer must give Approve, Reject or Reply, got {type(given).__name__} for the "
                f"interrupt {interrupt.interrupt_id!r}"
            )
        # The id makes an answer whose own answer was lost count once when it comes again.
        target, again = (self.session_id, interrupt.interrupt_id), interrupt.interrupt_id
        give: Callable[[], Awaitable[None]]
        if isinstance(given, Reply):
            give = partial(self.sessions.answer_question, *target, given.value, answer_id=again)
        elif isinstance(given, Approve):
            give = partial(
                self.sessions.resolve_interrupt,
                *target,
                approved=True,
                arguments=given.arguments,
                payload=given.payload,
                answer_id=again,
            )
        else:
            give = partial(
                self.sessions.resolve_interrupt,
                *target,
                approved=False,
                message=given.message,
                answer_id=again,
            )
        await _until_taken(give)


async def _history(sessions: AgentSessionClient, session_id: str) -> list[AgentMessage]:
    found: list[AgentMessage] = []
    before: int | None = None
    while True:
        page = await _until_taken(partial(sessions.list_messages, session_id, before_turn=before))
        found[:0] = page.messages
        before = page.next_before_turn
        if before is None:
            return found


async def _until_taken(call: Callable[[], Awaitable[_T]]) -> _T:
    while True:
        try:
            return await call()
        except SessionUnavailableError:
            await asyncio.sleep(_AGAIN_S)
