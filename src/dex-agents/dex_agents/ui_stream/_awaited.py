"""Which turn a stream is to show: that of a message, or that of an answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection

from dex_agents._errors import (
    InvalidInputError,
    SessionClosedError,
    SessionUnavailableError,
)
from dex_agents._session import reading, waiting
from dex_agents._session.checks import is_turn_id
from dex_agents._session.client import AgentSessionClient
from dex_agents._session.records import turn_number
from dex_agents._session.views import AgentSnapshot

_RECONNECT_S = 60.0
_FIRST_LOOK_S = 0.1  # a message that is next gets its turn in milliseconds
_LONGEST_LOOK_S = 0.5
_LOOK_IN_TURN_S = 1.0  # it may read a message before it ends


async def message_turn(sessions: AgentSessionClient, session_id: str, message_id: str) -> str:
    """Wait for the turn that takes a message.

    Of a session that was closed first: the turn that never came.

    Raises:
        InvalidInputError: The session knows no such message.
        SessionUnavailableError: No engine or no Worker answered for a minute.
    """
    connection = sessions._connection
    broken_since, look_s = 0.0, _FIRST_LOOK_S
    while True:
        try:
            snapshot, turn_id = await reading.snapshot_and_turn(connection, session_id, message_id)
            if turn_id is None:
                raise _unknown(session_id, message_id)
            if turn_id:
                return turn_id
            if snapshot.status == "closed":
                return f"t{snapshot.turns_done + 1}"
            broken_since = 0.0
            if snapshot.turn_id:
                number = turn_number(snapshot.turn_id)
                await waiting.turns_end_within(connection, session_id, number, _LOOK_IN_TURN_S)
                look_s = _FIRST_LOOK_S
                continue
        except SessionClosedError:
            continue
        except SessionUnavailableError:
            broken_since = broken_since or time.monotonic()
            if time.monotonic() - broken_since > _RECONNECT_S:
                raise
        await asyncio.sleep(look_s)
        look_s = min(2 * look_s, _LONGEST_LOOK_S)


async def known_turn(sessions: AgentSessionClient, session_id: str, message_id: str) -> str:
    """The turn that took a message, or empty while it waits.

    Raises:
        InvalidInputError: The session knows no such message.
    """
    turn_id = await sessions.get_message_turn(session_id, message_id)
    if turn_id is None:
        raise _unknown(session_id, message_id)
    return turn_id


def _unknown(session_id: str, message_id: str) -> InvalidInputError:
    return InvalidInputError(
        f"session {session_id!r} does not know which turn took message {message_id!r:.200}: "
        "it was never sent, or is not among the newest 64; name the turn itself"
    )


def turn_of_interrupts(snapshot: AgentSnapshot, interrupts: Collection[str]) -> str:
    """The turn in which these were asked, which their ids begin with.

    Raises:
        InvalidInputError: The session has asked none of that name, or they are of different turns.
    """
    turns = {interrupt_id.partition(".")[0] for interrupt_id in interrupts}
    newest = snapshot.turns_done + bool(snapshot.turn_id)
    for turn_id in turns:
        if not is_turn_id(turn_id) or turn_number(turn_id) > newest:
            asked = next(one for one in interrupts if one.partition(".")[0] == turn_id)
            raise InvalidInputError(
                f"session {snapshot.session_id!r} never asked interrupt {asked!r:.200}; see "
                "snapshot.pending_interrupts"
            )
    if len(turns) > 1:
        raise InvalidInputError(
            f"the interrupts are of different turns ({', '.join(sorted(turns))}); a stream shows one"
        )
    return turns.pop()
