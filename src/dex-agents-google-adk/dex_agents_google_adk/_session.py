"""The ADK session of one attempt: in memory, built from stored messages, never copied."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.sessions.base_session_service import (
    BaseSessionService,
    GetSessionConfig,
    ListSessionsResponse,
)
from google.adk.sessions.session import Session

from dex_agents_google_adk._adk_workarounds.workflow_markers import is_workflow_marker


class AttemptSessionService(BaseSessionService):
    """Serves the one session of an attempt.

    ADK's in-memory service copies the whole session at every read, which costs more than the rest
    of a long session's model call. An attempt is the only user of its session, so the session
    itself is handed out.

    Args:
        session: The session.
        appended: Called with each event right after it was appended, when ADK's database services
            would write it; what callbacks do to it later is not stored.
        workflow_names: Workflows whose marks for a resumption are left out.
    """

    def __init__(
        self,
        session: Session,
        appended: Callable[[Event], None] | None = None,
        workflow_names: Collection[str] = (),
    ) -> None:
        self._session = session
        self._appended = appended
        self._workflow_names = workflow_names

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Refused: sessions are created by the session Flow."""
        raise NotImplementedError(
            "An agent in a durable session cannot create another session; start one with "
            "AgentSessionClient.start_session()"
        )

    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
    ) -> Session | None:
        """The session of the attempt, if it is the one asked for."""
        return self._session if session_id == self._session.id else None

    async def list_sessions(
        self, *, app_name: str, user_id: str | None = None
    ) -> ListSessionsResponse:
        """The one session, without events and state as ADK documents it."""
        listed = self._session.model_copy(update={"events": [], "state": {}})
        return ListSessionsResponse(sessions=[listed])

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Refused: sessions end through the session client."""
        raise NotImplementedError("An agent cannot delete the durable session it runs in")

    async def append_event(self, session: Session, event: Event) -> Event:
        """Append to the session of the attempt."""
        if session is not self._session and session.id != self._session.id:
            raise SessionNotFoundError(f"Session {session.id} is not the session of this attempt")
        if event.partial or is_workflow_marker(event, self._workflow_names):
            return event
        appended = await super().append_event(self._session, event)
        self._session.last_update_time = event.timestamp
        if self._appended is not None:
            self._appended(appended)
        return appended


def make_session(
    *, session_id: str, app_name: str, user_id: str, state: dict[str, Any], events: list[Event]
) -> Session:
    """A session object that owns ``state`` and ``events``."""
    session = Session(id=session_id, app_name=app_name, user_id=user_id, state=state)
    session.events = events
    if events:
        session.last_update_time = events[-1].timestamp
    return session
