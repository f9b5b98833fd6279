"""How a client waits: on a counter of the session, which needs no Worker, until a deadline."""

from __future__ import annotations

import asyncio
import math
import time
from datetime import timedelta
from typing import Any

from dex import (
    AttributeMatch,
    LongPollTimeoutError,
    RequestTimeoutError,
    WaitForAttributeOptions,
)

from dex_agents._errors import SessionUnavailableError, TurnWaitTimeoutError
from dex_agents._session import resources
from dex_agents._session.connection import SessionConnection
from dex_agents._session.reading import stored_snapshot
from dex_agents._session.views import AgentSnapshot

_RECONNECT_S = 0.25
_LOOK_S = 2.0


async def wait_for_turns(
    connection: SessionConnection, session_id: str, turns_done: int, timeout_s: float
) -> None:
    """Wait until so many turns have ended."""
    if turns_done == 0:
        return  # there is nothing to wait for, and the counter begins with the first turn's end
    deadline = time.monotonic() + timeout_s
    what = f"did not end turn {turns_done}"
    done = AttributeMatch.greater_than_or_equal(turns_done)
    await _wait(connection, session_id, turns_done, resources.turns_done, done, deadline, what)


async def turns_end_within(
    connection: SessionConnection, session_id: str, turns_done: int, within_s: float
) -> bool:
    """Whether so many turns have ended, or do so in this short time. No Worker is asked.

    Raises:
        SessionNotFoundError, SessionClosedError, SessionUnavailableError: As they say.
    """
    done = AttributeMatch.greater_than_or_equal(turns_done)
    try:
        await _match(connection, session_id, resources.turns_done, done, within_s)
    except (LongPollTimeoutError, RequestTimeoutError, TimeoutError):
        return False
    return True


async def wait_until_settled(
    connection: SessionConnection, session_id: str, turns_done: int, timeout_s: float
) -> AgentSnapshot:
    """Wait until so many turns have ended, or a person is asked."""
    deadline = time.monotonic() + timeout_s
    what = f"neither ended turn {turns_done} nor asked a person"
    while True:
        snapshot = await _snapshot(connection, session_id, deadline, what)
        if snapshot.turns_done >= turns_done or snapshot.pending_interrupts:
            return snapshot
        # Not "greater": Steps side by side take it from clocks of their own.
        other = (
            AttributeMatch.not_equal_to(snapshot.revision)
            if snapshot.revision
            else AttributeMatch.greater_than(0)
        )
        await _wait(connection, session_id, turns_done, resources.revision, other, deadline, what)


async def _match(
    connection: SessionConnection,
    session_id: str,
    attribute: Any,
    match: AttributeMatch[int],
    within_s: float,
) -> None:
    """One wait of the engine. The SDK takes whole seconds; the rest of the last one is cut off."""
    options = WaitForAttributeOptions(request_timeout=timedelta(seconds=math.ceil(within_s)))
    async with asyncio.timeout(within_s), connection.errors(session_id, within_s):
        await connection.know(session_id)
        await connection.client.wait_for_attribute_match(session_id, attribute, match, options)


async def _wait(
    connection: SessionConnection,
    session_id: str,
    turns_done: int,
    attribute: Any,
    match: AttributeMatch[int],
    deadline: float,
    what: str,
) -> None:
    while True:
        left = max(deadline - time.monotonic(), 0.001)
        try:
            await _match(connection, session_id, attribute, match, left)
            return
        except LongPollTimeoutError:
            continue
        except SessionUnavailableError as error:
            await _bear(error, deadline)
        except (RequestTimeoutError, TimeoutError):
            why = await _why_not(connection, session_id, turns_done)
            raise _timeout(session_id, what, why) from None


async def _snapshot(
    connection: SessionConnection, session_id: str, deadline: float, what: str
) -> AgentSnapshot:
    while True:
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0.001)):
                return await stored_snapshot(connection, session_id)
        except SessionUnavailableError as error:
            await _bear(error, deadline)
        except TimeoutError:
            raise _timeout(session_id, what, _no_worker(connection)) from None


async def _bear(error: SessionUnavailableError, deadline: float) -> None:
    """An engine or Worker that restarts is back within the time given, or it is not."""
    if time.monotonic() + _RECONNECT_S > deadline:
        raise error
    await asyncio.sleep(_RECONNECT_S)


async def _why_not(connection: SessionConnection, session_id: str, turns_done: int) -> str:
    try:
        async with asyncio.timeout(_LOOK_S):
            snapshot = await stored_snapshot(connection, session_id)
    except (SessionUnavailableError, TimeoutError):
        return _no_worker(connection)
    waiting = [f"{i.tool_name} ({i.interrupt_id})" for i in snapshot.pending_interrupts]
    if waiting:
        return f"it waits for an answer about {', '.join(waiting)}"
    why = f"it is {snapshot.status}, {snapshot.turns_done} turns are done"
    if snapshot.status == "idle" and snapshot.turns_done < turns_done:
        why += (
            f" and no message waits, so nothing opens turn {snapshot.turns_done + 1}; send one with "
            "send_user_message"
        )
    return why


def _timeout(session_id: str, what: str, why: str) -> TurnWaitTimeoutError:
    return TurnWaitTimeoutError(
        f"session {session_id!r} {what} in time: {why}; the session goes on, so wait again"
    )


def _no_worker(connection: SessionConnection) -> str:
    return f"no Worker answers; {connection.missing_worker}"
