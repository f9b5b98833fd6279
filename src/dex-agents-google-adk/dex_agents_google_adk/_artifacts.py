"""Artifacts as the history of a session tells them.

An artifact service hands out the newest version of a name. After a rewind, or in a fork, that is not
the one that the kept turns have left, and in a fork it belongs to another session. Events say which
version each turn saved, so the current ones follow from the history, and nothing has to be copied
or written back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from google.adk.artifacts.base_artifact_service import ArtifactVersion, BaseArtifactService
from google.genai import types

from dex_agents._contract import AgentMessage, Json, RunModelRequest, ToolCallRecord
from dex_agents_google_adk._run_state import RunState
from dex_agents_google_adk._tool_events import events_of

Place = tuple[str, int]
"""Session and version."""
_USER_PREFIX = "user:"


def saved_by(item: Json) -> dict[str, int]:
    """Versions that a stored event, or the stored actions of a call, saved for the session."""
    actions = item.get("actions") or {} if isinstance(item, dict) else {}
    saved = actions.get("artifact_delta") or {}
    return {name: version for name, version in saved.items() if not name.startswith(_USER_PREFIX)}


def current_after(messages: Iterable[AgentMessage], session_id: str) -> dict[str, Place]:
    """Where the newest version of each name is after the given messages."""
    return {
        name: (message.origin_session_id or session_id, version)
        for message in messages
        for name, version in saved_by(message.framework_item).items()
    }


def note_removed(note: Json, messages: Sequence[AgentMessage]) -> Json:
    """Names that removed turns have saved: without a kept version they are not there."""
    names = set((note or {}).get("artifacts") or ())
    for message in messages:
        names |= saved_by(message.framework_item).keys()
    return {"artifacts": sorted(names)} if names or note else None


def session_artifacts(
    service: BaseArtifactService | None,
    request: RunModelRequest,
    summarized: Mapping[str, Place],
    state: RunState | None,
) -> BaseArtifactService | None:
    """What an attempt sees: the service itself, unless its newest versions need not be the session's.

    Args:
        summarized: Where the newest versions were at the end of what a summary stands for.
        state: The open turn so far.
    """
    forked = any(message.origin_session_id for message in request.history) or any(
        session_id != request.session_id for session_id, _ in summarized.values()
    )
    if service is None or not (forked or request.removed):
        return service
    current = {**summarized, **current_after(request.history, request.session_id)}
    for item in _open_turn_items(request, state):
        for name, version in saved_by(item).items():
            current[name] = (request.session_id, version)
    removed = (request.removed or {}).get("artifacts") or ()
    return SessionArtifacts(service, request.session_id, current, removed)


def _open_turn_items(request: RunModelRequest, state: RunState | None) -> Iterator[Json]:
    """Events of the turn, then what its calls have done since, in the model's order."""
    if state is None:
        return
    yield from state.events
    for call in (call for event in state.paused for call in event.calls):
        yield {"actions": call.actions}
        if call.record is not None:
            yield from _items_of(call.record)
    for record in request.records:
        yield from _items_of(record)


def _items_of(record: ToolCallRecord) -> Iterator[Json]:
    yield from events_of(record)
    yield record.framework_data


class SessionArtifacts(BaseArtifactService):
    """An application's artifact service as one session sees it.

    Args:
        service: The service.
        session_id: The session, which saves under its own id.
        current: Where the newest version of each name is.
        removed: Names that only count if they are in ``current``.
    """

    def __init__(
        self,
        service: BaseArtifactService,
        session_id: str,
        current: Mapping[str, Place],
        removed: Collection[str],
    ) -> None:
        self._service = service
        self._session_id = session_id
        self._current = dict(current)
        self._removed = frozenset(removed)

    def to_json(self) -> Json:
        """What a tool Step needs to see the same."""
        return {
            "current": {name: list(place) for name, place in self._current.items()},
            "removed": sorted(self._removed),
        }

    @classmethod
    def from_json(
        cls, service: BaseArtifactService, session_id: str, data: Mapping[str, Any]
    ) -> SessionArtifacts:
        """The same in a tool Step."""
        current = {name: (place[0], place[1]) for name, place in data["current"].items()}
        return cls(service, session_id, current, data["removed"])

    def _is_ours(self, filename: str, session_id: str | None) -> bool:
        return session_id == self._session_id and not filename.startswith(_USER_PREFIX)

    def _is_removed(self, filename: str) -> bool:
        return filename in self._removed and filename not in self._current

    async def save_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        artifact: types.Part | dict[str, Any],
        session_id: str | None = None,
        custom_metadata: dict[str, Any] | None = None,
    ) -> int:
        """Saved for the session itself."""
        version = await self._service.save_artifact(
            app_name=app_name,
            user_id=user_id,
            filename=filename,
            artifact=artifact,
            session_id=session_id,
            custom_metadata=custom_metadata,
        )
        if self._is_ours(filename, session_id):
            self._current[filename] = (self._session_id, version)
        return version

    def _place(
        self, filename: str, session_id: str | None, version: int | None
    ) -> tuple[str | None, int | None] | None:
        """Where to look for a version; ``None``: it is not there."""
        if not self._is_ours(filename, session_id):
            return session_id, version
        if self._is_removed(filename):
            return None
        home, newest = self._current.get(filename, (session_id, version))
        return home, newest if version is None else version

    async def load_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> types.Part | None:
        """The given version, or the one that the history has left."""
        place = self._place(filename, session_id, version)
        if place is None:
            return None
        return await self._service.load_artifact(
            app_name=app_name,
            user_id=user_id,
            filename=filename,
            session_id=place[0],
            version=place[1],
        )

    async def get_artifact_version(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> ArtifactVersion | None:
        """The metadata of the same."""
        place = self._place(filename, session_id, version)
        if place is None:
            return None
        return await self._service.get_artifact_version(
            app_name=app_name,
            user_id=user_id,
            filename=filename,
            session_id=place[0],
            version=place[1],
        )

    async def list_artifact_keys(
        self, *, app_name: str, user_id: str, session_id: str | None = None
    ) -> list[str]:
        """Names that the session can load."""
        names = await self._service.list_artifact_keys(
            app_name=app_name, user_id=user_id, session_id=session_id
        )
        if session_id != self._session_id:
            return names
        kept = {name for name in names if not self._is_removed(name)}
        return sorted(kept | self._current.keys())

    async def delete_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> None:
        """Deleted from the session itself; what another session saved stays there."""
        await self._service.delete_artifact(
            app_name=app_name, user_id=user_id, filename=filename, session_id=session_id
        )
        if self._is_ours(filename, session_id):
            self._current.pop(filename, None)
            self._removed |= {filename}

    async def list_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[int]:
        """Versions where the newest one is."""
        place = self._place(filename, session_id, None)
        if place is None:
            return []
        return await self._service.list_versions(
            app_name=app_name, user_id=user_id, filename=filename, session_id=place[0]
        )

    async def list_artifact_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[ArtifactVersion]:
        """The same with metadata."""
        place = self._place(filename, session_id, None)
        if place is None:
            return []
        return await self._service.list_artifact_versions(
            app_name=app_name, user_id=user_id, filename=filename, session_id=place[0]
        )
