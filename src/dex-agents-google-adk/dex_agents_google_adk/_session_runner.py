"""ADK's way of saying "rewind", for durable sessions.

Turns go through ``AgentSessionClient`` alone, so there is nothing here that runs one.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dex_agents._arguments import shown
from dex_agents._contract import AgentMessage
from dex_agents._errors import InvalidInputError, TurnTargetError
from dex_agents_google_adk._runner import AdkAgentRunner

if TYPE_CHECKING:
    from dex_agents import AgentSessionClient, AgentSessionFlow

_TURN_ID = re.compile(r"t[1-9][0-9]*", re.ASCII)
_TURNS_AT_ONCE = 100


@dataclass(frozen=True)
class SessionFork:
    """The session that a rewind has made.

    Attributes:
        session_id: The new session; it is idle.
        execution_id: The turn that its next message opens.
        source_session_id: The session that was rewound, which is as it was.
    """

    session_id: str
    execution_id: str
    source_session_id: str


class AdkSessionRunner:
    """``Runner.rewind_async`` of ADK for durable sessions, with ADK's names of arguments.

    Unlike ADK's it leaves the given session as it is and answers with a new one. To go back within
    the session, use ``AgentSessionClient.rewind``.

    Args:
        sessions: The client of the sessions.
        flow: The Flow that it was built with, one of :func:`adk_agent_session_flow`.

    Raises:
        TypeError: An argument has the wrong type, or the Flow's agent is none of ADK.
    """

    def __init__(self, sessions: AgentSessionClient, flow: AgentSessionFlow) -> None:
        from dex_agents import AgentSessionClient, AgentSessionFlow

        if not isinstance(sessions, AgentSessionClient):
            raise TypeError(
                f"sessions must be an AgentSessionClient, got {type(sessions).__name__}"
            )
        if not isinstance(flow, AgentSessionFlow):
            raise TypeError(
                f"flow must be what adk_agent_session_flow() makes, got {type(flow).__name__}"
            )
        if not isinstance(flow.runner, AdkAgentRunner):
            raise TypeError(
                f"flow must be one of an ADK agent, but its runner is a {type(flow.runner).__name__}"
            )
        self._sessions = sessions
        self._user_id = flow.runner.user_id

    async def rewind_async(
        self,
        *,
        user_id: str,
        session_id: str,
        rewind_before_invocation_id: str,
        new_session_id: str | None = None,
    ) -> SessionFork:
        """Make a session that ends before a turn, with state and artifacts of then.

        Args:
            user_id: The user of the Flow's sessions.
            rewind_before_invocation_id: ADK's invocation id of a finished turn, as tools and events
                have it, or the turn's own id, such as ``"t3"``.
            new_session_id: Id of the new session. With it the same call again answers the same;
                without it each call makes another session.

        Raises:
            TurnTargetError: It is no finished turn of this session, for example the id of an event,
                or there is no turn before it; nothing was created.
            InvalidInputError: An argument is refused, or the user is another one.
            SessionError: As of ``AgentSessionClient.fork_session``.
        """
        if user_id != self._user_id:
            raise InvalidInputError(
                f"user_id must be {self._user_id!r}, the user of this Flow's sessions, got {shown(user_id)}"
            )
        invocation_id: object = rewind_before_invocation_id
        if not isinstance(invocation_id, str) or not invocation_id.strip():
            raise InvalidInputError(
                "rewind_before_invocation_id must be an invocation id of ADK or a turn id, got "
                f"{invocation_id!r}"
            )
        turn_id = invocation_id
        if not _TURN_ID.fullmatch(invocation_id):
            turn_id = await self._find_turn(session_id, invocation_id)
        if new_session_id is None:
            new_session_id = f"{str(session_id)[:160]}-{uuid.uuid4().hex[:12]}"
        forked = await self._sessions.fork_session(
            session_id, new_session_id, before_turn_id=turn_id
        )
        return SessionFork(forked.session_id, forked.next_turn_id, forked.source_session_id)

    async def _find_turn(self, session_id: str, invocation_id: str) -> str:
        """The first turn with this invocation: a task that waits for the user spans several."""
        found = ""
        async for message in self._newest_first(session_id):
            item = message.framework_item
            if item.get("invocation_id") == invocation_id:
                found = message.turn_id
            elif item.get("id") == invocation_id:
                raise TurnTargetError(
                    f"{invocation_id!r} is the id of an event of turn {message.turn_id}; only whole "
                    f"turns can be rewound, by invocation id or {message.turn_id!r}"
                )
        if not found:
            raise TurnTargetError(
                f"session {session_id!r} has no finished turn of invocation {invocation_id!r}"
            )
        return found

    async def _newest_first(self, session_id: str) -> AsyncIterator[AgentMessage]:
        before: int | None = None
        while True:
            page = await self._sessions.list_messages(
                session_id, before_turn=before, turns=_TURNS_AT_ONCE
            )
            for message in reversed(page.messages):
                yield message
            before = page.next_before_turn
            if before is None:
                return
