"""The one place that reads a session for a UI stream: a turn's changes as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable
from urllib.parse import quote, unquote

from dex_agents._arguments import (
    check_fields,
    check_instance,
    check_seconds,
    check_texts,
    shown,
)
from dex_agents._errors import (
    InvalidInputError,
    SessionClosedError,
    SessionUnavailableError,
    TurnWaitTimeoutError,
)
from dex_agents._session.checks import check_turn_id, is_turn_id
from dex_agents._session.client import AgentSessionClient
from dex_agents._session.records import turn_number
from dex_agents._session.views import AgentEventBatch, AgentSnapshot, FinishedTurn
from dex_agents.ui_stream._awaited import known_turn, message_turn, turn_of_interrupts
from dex_agents.ui_stream._changes import Change, TurnPaused
from dex_agents.ui_stream._fold import TurnFold

_LOGGER = logging.getLogger("dex_agents")
KEEP_ALIVE_S = 15.0
RECONNECT_S = 60.0
_RETRY_S = 0.5
_DRAIN_S = 2.0
_TURN_WAIT_S = 3_600.0
_QUEUED_BATCHES = 64
# An older release named no first event.
_EVENT_ID = re.compile(r"(t[0-9]+)/([0-9]+)/([!-.0-~]*)(?:/([0-9a-f]{8}))?")
_T = TypeVar("_T")


@runtime_checkable
class UiEncoder(Protocol[_T]):
    """A protocol: :class:`AiSdkEncoder`, ``ag_ui.AgUiEncoder``, or one of your own.

    Equal changes give equal parts, as a stream that goes on counts the ones that were sent.
    """

    last_frame: str

    def encode(self, change: Change) -> Sequence[_T]:
        """The parts that tell a change."""

    def is_end(self, change: Change) -> bool:
        """Whether the response ends behind this change."""

    def to_text(self, part: _T) -> str:
        """A part as the data of one server-sent event."""

    def broken(self) -> _T:
        """The part for a stream that cannot go on."""


@dataclass(frozen=True)
class Position:
    """Where a stream stands, as the id of a server-sent event.

    Attributes:
        turn_id: The turn.
        sent: How many parts of the turn were sent.
        token: Resume token of the session's events from before the turn's first one.
        first: The event from which on parts were counted, or empty if there was none.
    """

    turn_id: str
    sent: int = 0
    token: str = ""
    first: str = ""

    def __post_init__(self) -> None:
        check_fields(self, {"turn_id": str, "sent": int, "token": str, "first": str})
        if not is_turn_id(self.turn_id):
            raise ValueError(f"Position.turn_id must be like 't12', got {shown(self.turn_id)}")
        if self.sent < 0:
            raise ValueError(f"Position.sent must be at least 0, got {self.sent}")

    def __str__(self) -> str:
        place = f"{self.turn_id}/{self.sent}/{quote(self.token, safe='')}"
        return f"{place}/{self.first}" if self.first else place

    @classmethod
    def parse(cls, text: str) -> Position:
        """The position of an event id.

        Raises:
            InvalidInputError: It is no event id of a UI stream.
        """
        check_instance("text", text, str, "it is the header Last-Event-ID")
        found = _EVENT_ID.fullmatch(text) if len(text) < 2_000 else None
        if found is None:
            raise InvalidInputError(
                f"last event id {text[:80]!r} is none of a UI stream; leave it out to see the turn "
                "from its beginning"
            )
        turn_id, sent, token, first = found.groups("")
        return cls(turn_id, int(sent), unquote(token), first)


@dataclass(frozen=True)
class _Read:
    batch: AgentEventBatch
    token_before: str


@dataclass(frozen=True)
class _Stored:
    outcome: FinishedTurn | None


@dataclass(frozen=True)
class _Lost:
    error: Exception


async def open_ui_stream(
    sessions: AgentSessionClient,
    session_id: str,
    encoder: UiEncoder[_T],
    *,
    turn_id: str = "",
    message_id: str = "",
    last_event_id: str = "",
    after_interrupts: Sequence[str] = (),
    keep_alive_s: float = KEEP_ALIVE_S,
) -> AsyncGenerator[str, None]:
    """Open the stream of one turn as text of server-sent events.

    A client that comes back with the id of the last event it got sees the rest, nothing twice.
    The stream ends behind the turn's end, which is stored by then, or where ``encoder`` says; to
    stop earlier, close the iterator. The turn does not notice either way. A stream that cannot go
    on where it was to, for example because the turn's first events are no longer kept, ends with
    ``encoder.broken()``: read the session anew, without ``last_event_id`` and ``after_interrupts``.

    Args:
        sessions: The client of the sessions.
        session_id: The session to show.
        encoder: A new one for each stream.
        turn_id: The turn; the open one or else the newest if empty. It may still be to come.
        message_id: Instead of ``turn_id``: the turn that takes this message, or has taken it. It may
            wait for its turn, and be one that a model call of the open turn reads.
        last_event_id: The header ``Last-Event-ID``; also finds the turn if ``turn_id`` is empty.
        after_interrupts: Go on behind the pause in which these were pending, as a response that
            continues a turn needs to. Also finds the turn if nothing else names it.
        keep_alive_s: Seconds of silence until a comment is sent, so that proxies keep the line.

    Raises:
        SessionNotFoundError: There is no session of this id.
        TypeError, ValueError: An argument has the wrong type or is out of its range.
        InvalidInputError: An id is refused, the session does not know the message, never asked what
            ``after_interrupts`` names or asked it in another turn, or has no turn yet.
        SessionUnavailableError: No engine or no Worker answered.
    """
    check_instance("sessions", sessions, AgentSessionClient)
    check_instance("encoder", encoder, UiEncoder, "such as AiSdkEncoder(session_id)")
    check_instance("last_event_id", last_event_id, str)
    check_texts("after_interrupts", after_interrupts)
    check_seconds("keep_alive_s", keep_alive_s)
    if turn_id != "":
        check_turn_id(turn_id)
    check_instance("message_id", message_id, str)
    if turn_id and message_id:
        raise ValueError("turn_id and message_id both name the turn; leave one out")
    snapshot = await sessions.get_agent_snapshot(session_id)
    start = Position.parse(last_event_id) if last_event_id else None
    behind = frozenset(after_interrupts)
    if message_id:
        turn_id = await known_turn(sessions, session_id, message_id)
    asked_in = turn_of_interrupts(snapshot, behind) if behind else ""
    wanted = turn_id or (start.turn_id if start else "") or asked_in
    if asked_in and wanted != asked_in:
        raise InvalidInputError(
            f"the interrupts were asked in turn {asked_in}, not in {wanted}; name no other turn"
        )

    def follow(turn_id: str) -> AsyncGenerator[str, None]:
        begin = start or Position(turn_id)
        sent = begin.sent if turn_id == begin.turn_id else 0
        goes_on = sent > 0 or bool(behind)
        follower = _Follower(sessions, session_id, turn_id, begin, keep_alive_s, goes_on=goes_on)
        return _frames(follower, encoder, turn_id, sent, behind)

    if message_id and not turn_id:
        coming = functools.partial(message_turn, sessions, session_id, message_id)
        return _frames_when_known(coming, follow, encoder, keep_alive_s)
    return follow(wanted or _newest_turn(snapshot))


async def _frames_when_known(
    coming: Callable[[], Coroutine[None, None, str]],
    follow: Callable[[str], AsyncGenerator[str, None]],
    encoder: UiEncoder[_T],
    keep_alive_s: float,
) -> AsyncGenerator[str, None]:
    """The frames of a turn that is to come."""
    task = asyncio.create_task(coming(), name="ui stream of a message")
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=keep_alive_s)
            if not task.done():
                yield ": waiting\n\n"
        try:
            turn_id = task.result()
        except Exception as error:
            _LOGGER.warning("a UI stream of a message broke off", exc_info=error)
            yield f"data: {encoder.to_text(encoder.broken())}\n\n"
            if encoder.last_frame:
                yield f"data: {encoder.last_frame}\n\n"
            return
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    async with contextlib.aclosing(follow(turn_id)) as frames:
        async for frame in frames:
            yield frame


def _newest_turn(snapshot: AgentSnapshot) -> str:
    if snapshot.turn_id:
        return snapshot.turn_id
    is_to_come = snapshot.queued_messages or snapshot.status == "running"
    number = snapshot.turns_done + bool(is_to_come)
    if number == 0:
        raise InvalidInputError(f"session {snapshot.session_id!r} has no turn to show")
    return f"t{number}"


async def _frames(
    follower: _Follower,
    encoder: UiEncoder[_T],
    turn_id: str,
    sent: int,
    after_interrupts: frozenset[str],
) -> AsyncGenerator[str, None]:
    count, is_behind, is_broken = 0, not after_interrupts, False
    async with contextlib.aclosing(follower.changes()) as changes:
        async for change in changes:
            if change is None:
                yield ": waiting\n\n"
                continue
            if isinstance(change, _Lost):
                _LOGGER.warning("a UI stream of turn %s broke off", turn_id, exc_info=change.error)
                is_broken = True
                break
            for part in encoder.encode(change):
                count += 1
                if count > sent and is_behind:
                    yield f"id: {follower.position(count)}\ndata: {encoder.to_text(part)}\n\n"
            if not is_behind:
                is_behind = _pauses_for(change, after_interrupts)
            elif encoder.is_end(change) and count > sent:
                break
    if is_broken or not is_behind:
        yield f"data: {encoder.to_text(encoder.broken())}\n\n"
    if encoder.last_frame:
        yield f"data: {encoder.last_frame}\n\n"


def _pauses_for(change: Change, interrupts: frozenset[str]) -> bool:
    return isinstance(change, TurnPaused) and interrupts <= {
        interrupt.interrupt_id for interrupt in change.interrupts
    }


class _Follower:
    """Reads one turn of a session until its end is stored."""

    def __init__(
        self,
        sessions: AgentSessionClient,
        session_id: str,
        turn_id: str,
        start: Position,
        keep_alive_s: float,
        *,
        goes_on: bool,
    ) -> None:
        self._sessions = sessions
        self._session_id = session_id
        self._turn_id = turn_id
        self._keep_alive_s = keep_alive_s
        self._start = start
        self._goes_on = goes_on
        self._has_begun = False
        self._fold = TurnFold(turn_id)
        self.token = start.token
        self._news: asyncio.Queue[_Read | _Stored | _Lost] = asyncio.Queue(_QUEUED_BATCHES)

    def position(self, sent: int) -> Position:
        """Where the stream stands when so many parts were sent."""
        return Position(self._turn_id, sent, self.token, self._fold.first)

    @property
    def _is_cut(self) -> bool:
        """Whether parts that were sent before cannot be counted any more."""
        if self._start.turn_id == self._turn_id and self._start.first:
            return self._fold.first != self._start.first
        return self._fold.is_cut

    async def changes(self) -> AsyncGenerator[Change | _Lost | None, None]:
        """The turn's changes; ``None`` for a while without any."""
        tasks = [
            asyncio.create_task(work, name=f"ui stream of {self._session_id}")
            for work in (self._read(), self._watch())
        ]
        try:
            async for change in self._changes(self._fold):
                is_told = change is not None and not isinstance(change, _Lost)
                if is_told and self._goes_on and self._is_cut:
                    # Parts are counted from the first one, which is gone.
                    yield _Lost(LookupError("the first events of the turn are no longer kept"))
                    return
                yield change
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _changes(self, fold: TurnFold) -> AsyncIterator[Change | _Lost | None]:
        stored: _Stored | None = None
        while not fold.has_ended:
            is_drained = False
            try:
                async with asyncio.timeout(_DRAIN_S if stored else self._keep_alive_s):
                    news = await self._news.get()
            except TimeoutError:
                if stored is None:
                    yield None
                    continue
                is_drained = True
            else:
                if isinstance(news, _Lost):
                    yield news
                    return
                if isinstance(news, _Stored):
                    stored = news
                else:
                    for change in self._added(fold, news):
                        yield change
            if stored is None:
                continue
            for change in fold.stored(stored.outcome, is_drained=is_drained):
                yield change
            if fold.is_end_lost:
                yield _Lost(LookupError("how the turn ended is no longer kept"))
                return

    def _added(self, fold: TurnFold, news: _Read) -> list[Change]:
        changes = [change for event in news.batch.events for change in fold.add(event)]
        if changes and not self._has_begun:
            self._has_begun, self.token = True, news.token_before
        return changes

    async def _read(self) -> None:
        """Every batch of events, across engines that restart."""
        token, broken_since = self._start.token, 0.0
        while True:
            try:
                events = self._sessions.read_events(self._session_id, resume_token=token)
                async for batch in events:
                    broken_since = 0.0
                    await self._news.put(_Read(batch, token))
                    token = batch.resume_token
                return  # the session is closed, which the watch tells
            except SessionUnavailableError as error:
                broken_since = broken_since or time.monotonic()
                if time.monotonic() - broken_since > RECONNECT_S:
                    await self._news.put(_Lost(error))
                    return
                await asyncio.sleep(_RETRY_S)
            except Exception as error:
                await self._news.put(_Lost(error))
                return

    async def _watch(self) -> None:
        """The turn's end, as soon as it is stored."""
        while True:
            try:
                snapshot = await self._snapshot_at_end()
            except TurnWaitTimeoutError:
                continue
            except SessionUnavailableError:
                await asyncio.sleep(_RETRY_S)
                continue
            except Exception as error:
                await self._news.put(_Lost(error))
                return
            outcome = snapshot.last_turn
            if outcome is not None and outcome.turn_id != self._turn_id:
                outcome = None
            if snapshot.turns_done < turn_number(self._turn_id):
                # The session was closed before the turn began.
                outcome = FinishedTurn(self._turn_id, is_cancelled=True)
            await self._news.put(_Stored(outcome))
            return

    async def _snapshot_at_end(self) -> AgentSnapshot:
        try:
            return await self._sessions.wait_for_turn(
                self._session_id, turn_number(self._turn_id), timeout_s=_TURN_WAIT_S
            )
        except SessionClosedError:
            return await self._sessions.get_agent_snapshot(self._session_id)
