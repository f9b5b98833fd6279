"""The client of agent sessions. It needs no Worker in its process."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

from dex import (
    AsyncClient,
    AttributeMatch,
    FlowAlreadyStartedError,
    FlowNotActiveOrNotFoundError,
    FlowNotFoundError,
    FlowStatus,
    LongPollTimeoutError,
    RequestTimeoutError,
    RPCInvokeOptions,
    RpcLockConflictError,
    StartFlowOptions,
    WaitForAttributeOptions,
)

from dex_agents._errors import (
    InterruptError,
    InvalidInputError,
    SessionAlreadyExistsError,
    SessionClosedError,
    SessionError,
    SessionNotFoundError,
    TurnWaitTimeoutError,
)
from dex_agents._session import resources
from dex_agents._session.encoding import decode, encode
from dex_agents._session.flow import AgentSessionFlow
from dex_agents._session.records import message_from_json
from dex_agents._session.views import (
    AgentEventBatch,
    AgentSnapshot,
    MessagePage,
    event_from_json,
    snapshot_from_json,
)

MAX_SESSION_ID_LENGTH = 200
_FORBIDDEN_IN_IDS = "/$:"
_LOCK_TRIES = 40
_PAGE_BYTES = 2_500_000
_EVENT_POLL = timedelta(seconds=50)
_REFUSALS = {
    "not_pending": "is not pending: it was answered, it expired, its turn ended, or it never existed",
    "already_answered": "was already answered; an answer cannot be changed",
    "expired": "has expired; the call counts as rejected",
    "arguments_differ": "asks for other arguments than the digest that was given",
}
_T = TypeVar("_T")


class AgentSessionClient:
    """Starts sessions, sends messages, answers interrupts, reads history and live events.

    Args:
        client: A connected ``dex.AsyncClient`` whose Registry holds ``flow``.
        flow: The same Flow that the Workers serve.
    """

    def __init__(self, client: AsyncClient, flow: AgentSessionFlow) -> None:
        if not isinstance(flow, AgentSessionFlow):
            raise TypeError(f"flow must be an AgentSessionFlow, got {type(flow).__name__}")
        self._client = client
        self._flow = flow

    async def start_session(self, session_id: str, text: str) -> None:
        """Start a session with its first user message. The same call again changes nothing.

        Raises:
            SessionAlreadyExistsError: The id was used before with another first message.
            InvalidInputError: The id or the text is refused; nothing was stored.
        """
        _check_session_id(session_id)
        self._check_text(text)
        digest = hashlib.sha256(encode([session_id, text])).hexdigest()[:40]
        start = encode({"message": {"id": f"start-{digest}", "text": text}})
        options = StartFlowOptions(request_id=f"start-{digest}", ignore_already_started=True)
        try:
            await self._client.start_flow(self._flow, session_id, start, options)
        except FlowAlreadyStartedError:
            raise SessionAlreadyExistsError(
                f"session {session_id!r} was already started with another message; "
                "use send_user_message, or another session id"
            ) from None

    async def send_user_message(
        self, session_id: str, text: str, *, message_id: str | None = None
    ) -> str:
        """Queue a message; it opens the next turn. Returns its id.

        Args:
            message_id: Hand the same id again to repeat a call whose answer was lost: the message counts once
                (among the newest 64 of the session).

        Raises:
            SessionNotFoundError, SessionClosedError: There is no open session of this id.
            InvalidInputError: The text or an id is refused, or too many messages wait; nothing was stored.
        """
        _check_session_id(session_id)
        self._check_text(text)
        message_id = message_id or uuid.uuid4().hex
        if not isinstance(message_id, str) or not 0 < len(message_id) <= MAX_SESSION_ID_LENGTH:
            raise InvalidInputError(
                f"message_id must be a text of 1 to {MAX_SESSION_ID_LENGTH} characters"
            )
        message = encode({"id": message_id, "text": text})
        answer = decode(
            await self._call(
                session_id,
                lambda: self._client.invoke_rpc(
                    self._flow.send_user_message_rpc, session_id, message
                ),
            )
        )
        if answer.get("refused"):
            raise InvalidInputError(
                f"session {session_id!r} has {answer['waiting']} messages that wait for their turn, "
                "no more are taken; send again when a turn has ended"
            )
        return message_id

    async def get_agent_snapshot(self, session_id: str) -> AgentSnapshot:
        """Where the session stands now.

        Raises:
            SessionNotFoundError: There is no session of this id.
        """
        _check_session_id(session_id)
        data = await self._call(
            session_id,
            lambda: self._client.invoke_rpc(self._flow.get_agent_snapshot_rpc, session_id),
        )
        return snapshot_from_json(session_id, decode(data))

    async def resolve_interrupt(
        self,
        session_id: str,
        interrupt_id: str,
        *,
        approved: bool,
        message: str | None = None,
        arguments_digest: str | None = None,
    ) -> None:
        """Answer a pending interrupt; the answer acts once.

        Args:
            approved: Whether the call may run.
            message: What the model reads of a rejection.
            arguments_digest: ``PendingInterrupt.arguments_digest`` of what was shown; the answer is refused if the
                call's arguments are others.

        Raises:
            InterruptError: It is not pending, was already answered, has expired, or is another one than shown;
                nothing changed, and the text says which.
            InvalidInputError: An argument is refused; nothing was stored.
        """
        _check_session_id(session_id)
        if not isinstance(interrupt_id, str) or not interrupt_id.strip():
            raise InvalidInputError("interrupt_id must not be blank; see snapshot.pending_interrupts")
        if not isinstance(approved, bool):
            raise InvalidInputError(f"approved must be True or False, got {approved!r}")
        if message is not None:
            self._check_text(message, "message")
        if "/" in interrupt_id or len(interrupt_id) > MAX_SESSION_ID_LENGTH:
            raise InterruptError(f"interrupt {interrupt_id!r} {_REFUSALS['not_pending']}")
        given = encode(
            {
                "interrupt_id": interrupt_id,
                "approved": approved,
                "message": message,
                "arguments_digest": arguments_digest,
            }
        )
        options = RPCInvokeOptions(
            lock_attribute_map_instances=(resources.interrupts.lock(interrupt_id),),
            load_attribute_map_instances=(resources.interrupts.load(interrupt_id),),
        )
        data = await self._call(
            session_id,
            lambda: self._with_lock_retries(
                lambda: self._client.invoke_rpc(
                    self._flow.resolve_interrupt_rpc, session_id, given, options=options
                )
            ),
        )
        refused = decode(data).get("refused")
        if refused:
            raise InterruptError(
                f"interrupt {interrupt_id!r} of session {session_id!r} {_REFUSALS[refused]}"
            )

    async def list_messages(
        self, session_id: str, *, before_turn: int | None = None, turns: int = 20
    ) -> MessagePage:
        """Stored messages of finished turns: the newest ``turns`` turns, or those before ``before_turn``.

        Raises:
            SessionNotFoundError: There is no session of this id.
            InvalidInputError: ``turns`` is not 1 to 100, or ``before_turn`` below 1.
        """
        _check_session_id(session_id)
        if isinstance(turns, bool) or not isinstance(turns, int) or not 1 <= turns <= 100:
            raise InvalidInputError(f"turns must be 1 to 100, got {turns!r}")
        if before_turn is None:
            before_turn = (await self.get_agent_snapshot(session_id)).turns_done + 1
        if isinstance(before_turn, bool) or not isinstance(before_turn, int) or before_turn < 1:
            raise InvalidInputError(f"before_turn must be at least 1, got {before_turn!r}")
        keys = [
            resources.page_key(number)
            for number in range(before_turn - 1, max(0, before_turn - 1 - turns), -1)
        ]
        if not keys:
            return MessagePage((), None)
        request = encode({"keys": keys, "max_bytes": _PAGE_BYTES})
        options = RPCInvokeOptions(
            load_attribute_map_instances=tuple(resources.messages.load(key) for key in keys)
        )
        data = await self._call(
            session_id,
            lambda: self._client.invoke_rpc(
                self._flow.read_pages_rpc, session_id, request, options=options
            ),
        )
        pages = decode(data)
        messages = [
            message_from_json(item) for page in reversed(pages) for item in page["messages"]
        ]
        first = int(pages[-1]["key"]) if pages else 1
        return MessagePage(tuple(messages), first if first > 1 else None)

    async def read_events(
        self, session_id: str, *, resume_token: str = ""
    ) -> AsyncIterator[AgentEventBatch]:
        """Live events from the oldest that is kept, or from behind a token, for ever; stop by leaving the loop.

        Raises:
            InvalidInputError: The session id is refused.
        """
        _check_session_id(session_id)
        token = resume_token
        while True:
            try:
                message = await self._client.read_stream(
                    session_id, self._flow.event_stream, token, _EVENT_POLL
                )
            except LongPollTimeoutError:
                continue
            token = message.resume_token
            events = tuple(event_from_json(item) for item in json.loads(message.value))
            yield AgentEventBatch(events, token)

    async def wait_for_turn(
        self, session_id: str, turns_done: int, *, timeout_s: float
    ) -> AgentSnapshot:
        """Wait until so many turns have ended. Needs no Worker while it waits.

        Raises:
            TurnWaitTimeoutError: They have not within ``timeout_s`` seconds; the session goes on.
            SessionNotFoundError, SessionClosedError: There is no open session of this id.
        """
        _check_session_id(session_id)
        await self._wait(session_id, resources.turns_done, turns_done, time.monotonic() + timeout_s)
        return await self.get_agent_snapshot(session_id)

    async def wait_until_settled(
        self, session_id: str, *, turns_done: int, timeout_s: float
    ) -> AgentSnapshot:
        """Wait until so many turns have ended, or the session waits for a person.

        Raises:
            TurnWaitTimeoutError: Neither happened within ``timeout_s`` seconds; the session goes on.
            SessionNotFoundError, SessionClosedError: There is no open session of this id.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            snapshot = await self.get_agent_snapshot(session_id)
            if snapshot.turns_done >= turns_done or snapshot.pending_interrupts:
                return snapshot
            await self._wait(session_id, resources.revision, snapshot.revision + 1, deadline)

    async def _wait(
        self, session_id: str, attribute: Any, at_least: int, deadline: float
    ) -> None:
        left = max(1, round(deadline - time.monotonic() + 0.499))
        options = WaitForAttributeOptions(request_timeout=timedelta(seconds=left))
        match = AttributeMatch.greater_than_or_equal(at_least)
        try:
            await self._call(
                session_id,
                lambda: self._client.wait_for_attribute_match(
                    session_id, attribute, match, options
                ),
            )
        except RequestTimeoutError:
            raise TurnWaitTimeoutError(
                f"session {session_id!r} did not get there in time; it goes on, wait again"
            ) from None

    async def _with_lock_retries(self, call: Callable[[], Awaitable[_T]]) -> _T:
        for number in range(_LOCK_TRIES):
            try:
                return await call()
            except RpcLockConflictError:
                # Somebody else is answering, or the deadline is being handled: both are quick.
                if number == _LOCK_TRIES - 1:
                    raise
                await asyncio.sleep(random.uniform(0.005, 0.05))
        raise AssertionError("unreachable")

    async def _call(self, session_id: str, call: Callable[[], Awaitable[_T]]) -> _T:
        try:
            return await call()
        except FlowNotFoundError:
            raise _not_found(session_id) from None
        except FlowNotActiveOrNotFoundError:
            raise await self._gone(session_id) from None

    async def _gone(self, session_id: str) -> SessionError:
        try:
            info = await self._client.describe_flow(session_id)
        except FlowNotFoundError:
            return _not_found(session_id)
        if info.status is FlowStatus.RUNNING:
            return SessionError(f"session {session_id!r} could not be reached, try again")
        return SessionClosedError(f"session {session_id!r} is closed and takes no more commands")

    def _check_text(self, text: object, name: str = "text") -> None:
        if not isinstance(text, str):
            raise InvalidInputError(f"{name} must be a str, got {type(text).__name__}")
        if not text.strip():
            raise InvalidInputError(f"{name} must not be blank")
        size = len(text.encode("utf-8", "surrogatepass"))
        limit = self._flow.options.max_message_bytes
        if size > limit:
            raise InvalidInputError(
                f"{name} has {size} bytes, at most {limit} are taken; "
                "see AgentSessionOptions.max_message_bytes"
            )


def _not_found(session_id: str) -> SessionNotFoundError:
    return SessionNotFoundError(f"there is no session {session_id!r}; start it with start_session")


def _check_session_id(session_id: object) -> None:
    if not isinstance(session_id, str):
        raise InvalidInputError(f"session_id must be a str, got {type(session_id).__name__}")
    if not session_id.strip():
        raise InvalidInputError("session_id must not be blank")
    if len(session_id) > MAX_SESSION_ID_LENGTH:
        raise InvalidInputError(
            f"session_id has {len(session_id)} characters, at most {MAX_SESSION_ID_LENGTH} are taken"
        )
    bad = sorted({c for c in session_id if c in _FORBIDDEN_IN_IDS or not c.isprintable()})
    if bad:
        raise InvalidInputError(
            f"session_id {session_id!r} must not contain {', '.join(map(repr, bad))}"
        )
