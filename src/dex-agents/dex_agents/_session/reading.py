"""What a client reads of a session: its state, its history, its live events."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import grpc
from dex import (
    DexServiceError,
    FlowDefinitionError,
    FlowStatus,
    LongPollTimeoutError,
    StreamMessage,
)

from dex_agents._errors import InvalidInputError, SessionUnavailableError
from dex_agents._session.branch import messages_of, read_branch, read_pages
from dex_agents._session.connection import ANSWER_S, SessionConnection, not_found, unregistered
from dex_agents._session.notes import mark_older_notes
from dex_agents._session.records import message_digest
from dex_agents._session.views import (
    AgentEventBatch,
    AgentSnapshot,
    MessagePage,
    event_from_json,
    snapshot_from_json,
)

_EVENT_POLL = timedelta(seconds=50)
_SHORTEST_POLL = timedelta(seconds=1)
_IDLE_REASON = "no message of the user came within its idle lifetime"


async def snapshot_data(connection: SessionConnection, session_id: str) -> Any:
    """The session's own account of where it stands."""
    return await connection.call(connection.flow.get_agent_snapshot_rpc, session_id)


async def stored_snapshot(connection: SessionConnection, session_id: str) -> AgentSnapshot:
    """The same as a snapshot; it does not know of an end that the session had no part in."""
    return snapshot_from_json(session_id, await snapshot_data(connection, session_id))


async def turn_of_message(
    connection: SessionConnection, session_id: str, message_id: str
) -> str | None:
    """The turn that took a message; empty while it waits, ``None`` if the session knows none."""
    return _turn_in(await snapshot_data(connection, session_id), message_id)


async def snapshot_and_turn(
    connection: SessionConnection, session_id: str, message_id: str
) -> tuple[AgentSnapshot, str | None]:
    """:func:`snapshot` and :func:`turn_of_message` of one moment."""
    stored, data = await _look(connection, session_id)
    return stored, _turn_in(data, message_id)


def _turn_in(data: Any, message_id: str) -> str | None:
    digest = message_digest(message_id)
    turn = data.get("message_turns", {}).get(digest)
    if turn is not None:
        return f"t{turn}"
    # The first message is an argument of the session, and known when a Worker has taken it.
    is_waiting = digest in data.get("accepted", ()) or data["is_starting"]
    return "" if is_waiting else None


async def snapshot(connection: SessionConnection, session_id: str) -> AgentSnapshot:
    """Where the session stands, also one that was stopped or had been idle for too long."""
    return (await _look(connection, session_id))[0]


async def _look(connection: SessionConnection, session_id: str) -> tuple[AgentSnapshot, Any]:
    """A snapshot and what the session answered for it."""
    # The RPC also answers for a session that was stopped, and does not say so.
    status, data = await asyncio.gather(
        connection.status(session_id), snapshot_data(connection, session_id)
    )
    if status is FlowStatus.RUNNING:
        return snapshot_from_json(session_id, data), data
    data = await snapshot_data(connection, session_id)  # the first may be from before the end
    stored = snapshot_from_json(session_id, data)
    # Only an idle session completes without a word in its state.
    is_idle = stored.status != "closed" and status is FlowStatus.COMPLETED
    reason = _IDLE_REASON if is_idle else stored.close_reason
    # Nobody can answer them any more, whatever the session knew of its end.
    closed = replace(stored, status="closed", close_reason=reason, pending_interrupts=())
    return closed, data


async def message_page(
    connection: SessionConnection,
    session_id: str,
    before_turn: int | None,
    turns: int,
    *,
    include_removed: bool,
) -> MessagePage:
    """Messages of so many turns before one, or of the newest.

    Raises:
        InvalidInputError: All turns asked for are later than the newest.
    """
    branch = await read_branch(connection, session_id)
    done = branch.header.finished_turns
    if before_turn is None:
        before_turn = done + 1
    if before_turn > done + 1:
        # An empty page would read as the beginning of the history.
        raise InvalidInputError(
            f"before_turn must be at most {done + 1}, as session {session_id!r} has done {done} "
            f"turns, got {before_turn}; leave it out for the newest turns"
        )
    there = branch.readable_turns(with_removed=include_removed)
    there = [number for number in there if number < before_turn]
    wanted = there[: -turns - 1 : -1]
    pages = await read_pages(connection, session_id, wanted) if wanted else []
    is_rest = len(pages) == len(there)
    messages = mark_older_notes(messages_of(pages[::-1]))
    return MessagePage(tuple(messages), None if is_rest else wanted[len(pages) - 1])


async def events(
    connection: SessionConnection, session_id: str, resume_token: str
) -> AsyncIterator[AgentEventBatch]:
    """Live events behind a token until the session is closed."""
    await connection.is_open(session_id)
    token = resume_token
    # The engine does not end a read when the Flow ends, as others may still write its Stream.
    closed = asyncio.create_task(_until_closed(connection, session_id))
    try:
        while True:
            try:
                message = await _next_message(connection, session_id, token, closed)
            except LongPollTimeoutError:
                if not await connection.is_open(session_id):
                    return
                if closed.done():  # it could not be asked
                    closed = asyncio.create_task(_until_closed(connection, session_id))
                continue
            token = message.resume_token
            batch = tuple(event_from_json(item) for item in json.loads(message.value))
            yield AgentEventBatch(batch, token)
    finally:
        closed.cancel()


async def _until_closed(connection: SessionConnection, session_id: str) -> None:
    """Returns when the session has ended, or cannot be asked; reading on shows which."""
    with contextlib.suppress(DexServiceError):
        while True:
            try:
                await connection.client.wait_for_flow(session_id, _EVENT_POLL)
            except LongPollTimeoutError:
                continue
            return


async def _next_message(
    connection: SessionConnection, session_id: str, token: str, closed: asyncio.Task[None]
) -> StreamMessage[str]:
    """The first message behind a token. What a closed session has left comes without a wait.

    Raises:
        LongPollTimeoutError: There is none yet.
        SessionNotFoundError, InvalidInputError, SessionUnavailableError: As they say.
    """
    if not closed.done():
        read = asyncio.create_task(_read(connection, session_id, token, _EVENT_POLL))
        try:
            await asyncio.wait({read, closed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not read.done():
                read.cancel()
        if read.done():
            return await read
    return await _read(connection, session_id, token, _SHORTEST_POLL)


async def _read(
    connection: SessionConnection, session_id: str, token: str, wait: timedelta
) -> StreamMessage[str]:
    try:
        async with asyncio.timeout(wait.total_seconds() + ANSWER_S):
            return await connection.client.read_stream(
                session_id, connection.flow.event_stream, token, wait
            )
    except TimeoutError:
        raise _broken_off(session_id, "the engine does not answer") from None
    except FlowDefinitionError:
        raise unregistered(connection.flow) from None
    except LongPollTimeoutError:
        raise
    except DexServiceError as error:
        if error.code is grpc.StatusCode.NOT_FOUND:
            raise not_found(session_id) from None
        if error.code is not grpc.StatusCode.INVALID_ARGUMENT:
            raise _broken_off(session_id, error.detail) from None
        raise InvalidInputError(
            f"resume_token {token!r} belongs to no events of session {session_id!r}; "
            'use "" for all that are kept'
        ) from None


def _broken_off(session_id: str, why: str) -> SessionUnavailableError:
    return SessionUnavailableError(
        f"the live events of session {session_id!r} broke off: {why}; read on from the newest "
        "resume_token"
    )
