"""The client of agent sessions. It needs no Worker in its process."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import random
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import grpc
from dex import (
    AsyncClient,
    AttributeMatch,
    Context,
    DexServiceError,
    FlowAlreadyStartedError,
    FlowNotActiveOrNotFoundError,
    FlowNotFoundError,
    FlowStatus,
    LongPollTimeoutError,
    RequestTimeoutError,
    RPCInvokeOptions,
    RpcLockConflictError,
    RPCResult,
    StartFlowOptions,
    WaitForAttributeOptions,
    WorkerInvocationError,
)

from dex_agents._contract import ImageMessageBuilder, Json
from dex_agents._errors import (
    InterruptError,
    InvalidInputError,
    SessionAlreadyExistsError,
    SessionClosedError,
    SessionNotFoundError,
    SessionUnavailableError,
    TurnWaitTimeoutError,
)
from dex_agents._media.reference import ImageReference, reference_to_json
from dex_agents._session import resources
from dex_agents._session.encoding import EncodingError, decode, encode
from dex_agents._session.failures import clean_text
from dex_agents._session.flow import AgentSessionFlow
from dex_agents._session.records import message_digest, message_from_json, turn_number
from dex_agents._session.steering import MAX_STEERING_BYTES
from dex_agents._session.views import (
    AgentEventBatch,
    AgentSnapshot,
    ClosedSession,
    MessagePage,
    event_from_json,
    snapshot_from_json,
)

MAX_SESSION_ID_LENGTH = 200
MAX_IMAGES = 100
MAX_ARGUMENTS_BYTES = 64 * 1024
_FORBIDDEN_IN_IDS = "/$:"
_LOCK_TRIES = 40
_PAGE_BYTES = 2_500_000
_RECONNECT_S = 0.25
_LOOK_S = 2.0
_EVENT_POLL = timedelta(seconds=50)
_CANCEL_S = 10.0
_IDLE_REASON = "no message of the user came within its idle lifetime"
_CLOSE_WAIT = timedelta(seconds=10)
_REFUSALS = {
    "not_pending": (
        "is not pending: it was answered, it expired, its turn ended, or it never existed"
    ),
    "already_answered": "was already answered; an answer cannot be changed",
    "expired": "has expired; the call counts as rejected",
    "arguments_differ": "asks for other arguments than the digest that was given",
}
_WAIT_REFUSALS = {
    "queue_full": "their turn, no more are taken; send again when a turn has ended",
    "steering_full": (
        "the next model call of the open turn, no more are taken; send again when it was made, or "
        "queue the message with send_user_message"
    ),
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

    async def start_session(
        self, session_id: str, text: str, *, images: Sequence[ImageReference] = ()
    ) -> None:
        """Start a session with its first user message. The same call again changes nothing.

        Args:
            images: What ``put_image`` of the Flow's media store gave, in order.

        Raises:
            SessionAlreadyExistsError: The id was used before with another first message.
            InvalidInputError: The id or the text is refused; nothing was stored.
        """
        _check_session_id(session_id)
        self._check_text(text)
        shown = self._check_images(images)
        content = [self._flow.get_flow_type(), session_id, text, *([shown] if shown else [])]
        digest = hashlib.sha256(encode(content)).hexdigest()[:40]
        start = encode({"message": {"id": f"start-{digest}", "text": text, "images": shown}})
        options = StartFlowOptions(request_id=f"start-{digest}", ignore_already_started=True)
        try:
            async with self._errors(session_id):
                await self._client.start_flow(self._flow, session_id, start, options)
        except FlowAlreadyStartedError:
            raise SessionAlreadyExistsError(
                f"session {session_id!r} was already started with another message; "
                "use send_user_message, or another session id"
            ) from None

    async def send_user_message(
        self,
        session_id: str,
        text: str,
        *,
        images: Sequence[ImageReference] = (),
        message_id: str | None = None,
    ) -> str:
        """Queue a message; it opens the next turn. Returns its id.

        Args:
            images: What ``put_image`` of the Flow's media store gave, in order.
            message_id: Hand the same id again to repeat a call whose answer was lost: the message
                counts once (among the newest 64 of the session).

        Raises:
            SessionNotFoundError, SessionClosedError: There is no open session of this id.
            InvalidInputError: The text or an id is refused, or too many messages wait; nothing was
                stored.
            SessionUnavailableError: No Worker or no engine took it in time; send it again with the
                same ``message_id``.
        """
        _check_session_id(session_id)
        self._check_text(text)
        shown = self._check_images(images)
        rpc = self._flow.send_user_message_rpc
        return await self._send(rpc, session_id, text, message_id, shown)

    async def steer_user_message(
        self, session_id: str, text: str, *, message_id: str | None = None
    ) -> str:
        """Send a message into the open turn; its next model call reads it. Returns its id.

        A model call or tool that runs goes on. If no turn is open, or the turn ends before a model
        call has read it, it opens a turn of its own like any queued message.

        Args:
            message_id: As in :meth:`send_user_message`.

        Raises:
            SessionNotFoundError, SessionClosedError: There is no open session of this id.
            InvalidInputError: The text or an id is refused, or too many messages wait; nothing was
                stored.
            SessionUnavailableError: No Worker or no engine took it in time; send it again with the
                same ``message_id``.
        """
        _check_session_id(session_id)
        self._check_text(text)
        size = len(text.encode("utf-8"))
        if size > MAX_STEERING_BYTES:
            raise InvalidInputError(
                f"text has {size} bytes, a message into an open turn at most "
                f"{MAX_STEERING_BYTES}; send a longer one with send_user_message"
            )
        return await self._send(self._flow.steer_user_message_rpc, session_id, text, message_id)

    async def _send(
        self,
        rpc: Callable[[Context, bytes], RPCResult[bytes]],
        session_id: str,
        text: str,
        message_id: str | None,
        images: Sequence[Json] = (),
    ) -> str:
        if message_id is None:
            message_id = uuid.uuid4().hex
        self._check_text(message_id, "message_id")
        if len(message_id) > MAX_SESSION_ID_LENGTH:
            raise InvalidInputError(
                f"message_id has {len(message_id)} characters, at most {MAX_SESSION_ID_LENGTH} "
                "are taken"
            )
        message = encode({"id": message_id, "text": text, "images": list(images)})
        accepted = resources.accepted.load(message_digest(message_id))
        options = RPCInvokeOptions(load_attribute_map_instances=(accepted,))
        async with self._errors(session_id):
            answer = decode(
                await self._client.invoke_rpc(rpc, session_id, message, options=options)
            )
        refused = answer.get("refused")
        if refused == "closed":
            raise _closed(session_id)
        if refused:
            raise InvalidInputError(
                f"session {session_id!r} has {answer['waiting']} messages that wait for "
                f"{_WAIT_REFUSALS[refused]}"
            )
        return message_id

    async def get_agent_snapshot(self, session_id: str) -> AgentSnapshot:
        """Where the session stands now.

        Raises:
            SessionNotFoundError: There is no session of this id.
        """
        _check_session_id(session_id)
        # The RPC also answers for a session that was stopped, and does not say so.
        status, snapshot = await asyncio.gather(
            self._flow_status(session_id), self._snapshot(session_id)
        )
        if status is FlowStatus.RUNNING:
            return snapshot
        snapshot = await self._snapshot(session_id)  # the first may be from before the end
        # Only an idle session completes without a word in its state.
        is_idle = snapshot.status != "closed" and status is FlowStatus.COMPLETED
        reason = _IDLE_REASON if is_idle else snapshot.close_reason
        return replace(snapshot, status="closed", close_reason=reason)

    async def _snapshot(self, session_id: str) -> AgentSnapshot:
        return snapshot_from_json(session_id, await self._read_snapshot(session_id))

    async def _read_snapshot(self, session_id: str) -> Any:
        async with self._errors(session_id):
            data = await self._client.invoke_rpc(self._flow.get_agent_snapshot_rpc, session_id)
        return decode(data)

    async def cancel_turn(self, session_id: str, *, turn_id: str | None = None) -> bool:
        """End the open turn at once; messages that wait then open the next one.

        The model call and the tools of the turn are stopped, except what runs in a thread. Its
        interrupts vanish. A call without a record that may have run counts as failed if it only
        reads, else its outcome is unknown; the next turn's model is told. Harmless when no turn is
        open.

        Args:
            turn_id: ``snapshot.turn_id`` of the turn that is meant; another one is left alone. With
                it the call may be repeated safely.

        Returns:
            Whether a cancel ended the turn; of several at once each says so. ``False``: no turn
            was open, it was another one, or it ended by itself at this moment.

        Raises:
            SessionNotFoundError, SessionClosedError: There is no open session of this id.
            InvalidInputError: An argument is refused.
            SessionUnavailableError: No Worker or no engine answered in time; the turn may have been
                stopped. Call again, with its ``turn_id``.
        """
        _check_session_id(session_id)
        if turn_id is not None:
            self._check_text(turn_id, "turn_id")
        request = encode({"turn_id": turn_id})
        async with self._errors(session_id):
            data = await self._with_lock_retries(
                session_id,
                lambda: self._client.invoke_rpc(self._flow.cancel_turn_rpc, session_id, request),
            )
        answer = decode(data)
        if answer.get("refused"):
            raise _closed(session_id)
        cancelled = answer["turn_id"]
        if not cancelled:
            return False
        try:
            await self._wait(
                session_id,
                resources.turns_done,
                turn_number(cancelled),
                time.monotonic() + _CANCEL_S,
            )
        except TurnWaitTimeoutError:
            raise SessionUnavailableError(
                f"turn {cancelled} of session {session_id!r} was stopped, and its end is stored as "
                "soon as a Worker takes it; check that one serves Flow type "
                f"{self._flow.get_flow_type()}"
            ) from None
        except SessionClosedError:
            pass  # closed in between; the snapshot still tells
        newest = (await self._read_snapshot(session_id))["cancelled_turn"]
        # A later turn was cancelled meanwhile: what became of this one is no longer kept apart.
        return bool(newest) and turn_number(newest) >= turn_number(cancelled)

    async def close_session(self, session_id: str, *, reason: str = "") -> ClosedSession:
        """End the session. To close it again changes nothing and answers the same.

        An open turn is cancelled as by :meth:`cancel_turn`; messages that wait for theirs are
        dropped and counted. History and snapshot stay readable, every other command is refused from
        now on, and the session id cannot be used again.

        Args:
            reason: Shown in the snapshot; at most 900 bytes of it are kept.

        Raises:
            SessionNotFoundError: There is no session of this id.
            InvalidInputError: An argument is refused.
            SessionUnavailableError: No Worker or no engine answered in time; call again.
        """
        _check_session_id(session_id)
        if not isinstance(reason, str):
            raise InvalidInputError(f"reason must be a str, got {type(reason).__name__}")
        request = encode({"reason": clean_text(reason)})
        try:
            async with self._errors(session_id):
                await self._client.invoke_rpc(self._flow.close_session_rpc, session_id, request)
                await self._client.wait_for_flow(session_id, _CLOSE_WAIT)
        except SessionClosedError:
            pass
        except LongPollTimeoutError:
            raise SessionUnavailableError(
                f"session {session_id!r} takes no more commands, and its end is stored as soon as "
                "a Worker takes it; check that one serves Flow type "
                f"{self._flow.get_flow_type()}"
            ) from None
        data = await self._read_snapshot(session_id)
        last = data["last_turn"] or {}
        is_cut = data["closing"] is not None and last.get("is_by_close")
        return ClosedSession(
            # The first message is the start's input and in no queue.
            dropped_messages=data["queued_messages"] + bool(data["is_starting"]),
            cancelled_turn=last["turn_id"] if is_cut else "",
        )

    async def resolve_interrupt(
        self,
        session_id: str,
        interrupt_id: str,
        *,
        approved: bool,
        message: str | None = None,
        payload: Json = None,
        arguments_digest: str | None = None,
        arguments: Mapping[str, Json] | None = None,
    ) -> None:
        """Answer a pending approval; the answer acts once.

        Args:
            approved: Whether the call may run.
            payload: What a tool that asked for the approval itself gets with it, as JSON.
            message: What the model reads of a rejection.
            arguments_digest: ``PendingInterrupt.arguments_digest`` of what was shown; the answer is
                refused if the call's arguments are others.
            arguments: Approves the call with these arguments in place of the model's; at most 64 KiB
                of JSON. The model sees both.

        Raises:
            InterruptError: It is not pending, was already answered, has expired, or is another one
                than shown; nothing changed, and the text says which.
            InvalidInputError: An argument is refused; nothing was stored.
        """
        _check_session_id(session_id)
        _check_interrupt_id(interrupt_id)
        if not isinstance(approved, bool):
            raise InvalidInputError(f"approved must be True or False, got {approved!r}")
        if message is not None:
            self._check_text(message, "message")
        if arguments_digest is not None and not isinstance(arguments_digest, str):
            raise InvalidInputError(
                f"arguments_digest must be a str, got {type(arguments_digest).__name__}"
            )
        if arguments is not None:
            _check_arguments(arguments, approved)
        given = self._encoded(
            "payload",
            {
                "interrupt_id": interrupt_id,
                "approved": approved,
                "message": message,
                "payload": payload,
                "arguments_digest": arguments_digest,
                "arguments": None if arguments is None else dict(arguments),
            },
        )
        await self._answer(session_id, interrupt_id, given)

    async def answer_question(self, session_id: str, interrupt_id: str, answer: Json) -> None:
        """Answer a pending interrupt that asks for more than an approval; the answer acts once.

        Args:
            answer: A JSON object, or a number, text, list or truth value, which the agent gets as
                ``{"result": answer}``. ``None`` is no answer.

        Raises:
            InterruptError: It is not pending, was already answered, has expired, asks for an
                approval, or the answer does not fit its ``response_schema``; nothing changed.
            InvalidInputError: An argument is refused; nothing was stored.
        """
        _check_session_id(session_id)
        _check_interrupt_id(interrupt_id)
        if answer is None:
            raise InvalidInputError("answer must not be None, which is no answer")
        is_wrapped = not isinstance(answer, dict)
        value = {"result": answer} if is_wrapped else answer
        given = self._encoded(
            "answer", {"interrupt_id": interrupt_id, "value": value, "is_wrapped": is_wrapped}
        )
        await self._answer(session_id, interrupt_id, given)

    def _encoded(self, name: str, value: Json) -> bytes:
        try:
            data = encode(value)
        except EncodingError as error:
            raise InvalidInputError(f"{name} must be a JSON value: {error}") from None
        limit = self._flow.options.max_message_bytes
        if len(data) > limit:
            raise InvalidInputError(
                f"{name} has {len(data)} bytes as stored, at most {limit} are taken"
            )
        return data

    async def _answer(self, session_id: str, interrupt_id: str, given: bytes) -> None:
        options = RPCInvokeOptions(
            lock_attribute_map_instances=(resources.interrupts.lock(interrupt_id),),
            load_attribute_map_instances=(resources.interrupts.load(interrupt_id),),
        )
        async with self._errors(session_id):
            data = await self._with_lock_retries(
                session_id,
                lambda: self._client.invoke_rpc(
                    self._flow.resolve_interrupt_rpc, session_id, given, options=options
                ),
            )
        result = decode(data)
        refused = result.get("refused")
        if refused == "closed":
            raise _closed(session_id)
        if refused == "misfit":
            raise InterruptError(
                f"interrupt {interrupt_id!r} of session {session_id!r} {result['why']}"
            )
        if refused:
            pending = ""
            if refused == "not_pending":
                ids = [
                    i.interrupt_id for i in (await self._snapshot(session_id)).pending_interrupts
                ]
                pending = f"; pending are: {', '.join(ids) or 'none'}"
            raise InterruptError(
                f"interrupt {interrupt_id!r} of session {session_id!r} {_REFUSALS[refused]}{pending}"
            )

    async def list_messages(
        self, session_id: str, *, before_turn: int | None = None, turns: int = 20
    ) -> MessagePage:
        """Stored messages of finished turns: the newest ones, or those before ``before_turn``.

        Args:
            before_turn: Number of the turn to end before; ``next_before_turn`` of another page.
            turns: How many turns at most; fewer come when they are large.

        Raises:
            SessionNotFoundError: There is no session of this id.
            InvalidInputError: ``turns`` is not 1 to 100, or ``before_turn`` below 1.
        """
        _check_session_id(session_id)
        if isinstance(turns, bool) or not isinstance(turns, int) or not 1 <= turns <= 100:
            raise InvalidInputError(f"turns must be 1 to 100, got {turns!r}")
        if before_turn is None:
            before_turn = (await self._snapshot(session_id)).turns_done + 1
        if isinstance(before_turn, bool) or not isinstance(before_turn, int) or before_turn < 1:
            raise InvalidInputError(f"before_turn must be at least 1, got {before_turn!r}")
        keys = [
            resources.page_key(number)
            for number in range(before_turn - 1, max(0, before_turn - 1 - turns), -1)
        ]
        if not keys:
            return MessagePage((), None)
        pages = await self._pages(session_id, keys)
        messages = [
            message_from_json(item) for page in reversed(pages) for item in page["messages"]
        ]
        first = int(pages[-1]["key"]) if pages else 1
        return MessagePage(tuple(messages), first if first > 1 else None)

    async def _pages(self, session_id: str, keys: list[str]) -> Any:
        request = encode({"keys": keys, "max_bytes": _PAGE_BYTES})
        options = RPCInvokeOptions(
            load_attribute_map_instances=tuple(resources.messages.load(key) for key in keys)
        )
        try:
            async with self._errors(session_id):
                data = await self._client.invoke_rpc(
                    self._flow.read_pages_rpc, session_id, request, options=options
                )
        except WorkerInvocationError as error:
            if error.worker_error_type != "TASK_TOO_LARGE" or len(keys) == 1:
                raise
            return await self._pages(session_id, keys[: len(keys) // 2])
        return decode(data)

    async def read_events(
        self, session_id: str, *, resume_token: str = ""
    ) -> AsyncIterator[AgentEventBatch]:
        """Live events from the oldest that is kept, or from behind a token.

        Goes on until the session is closed; stop by leaving the loop. Events are hints for people
        who watch: an answer counts when ``wait_for_turn`` or a snapshot shows it.

        Raises:
            SessionNotFoundError: There is no session of this id.
            InvalidInputError: The session id or the token is refused.
            SessionUnavailableError: The engine went away; read on from the newest token.
        """
        _check_session_id(session_id)
        await self._is_open(session_id)
        token = resume_token
        while True:
            try:
                message = await self._client.read_stream(
                    session_id, self._flow.event_stream, token, _EVENT_POLL
                )
            except LongPollTimeoutError:
                if not await self._is_open(session_id):
                    return
                continue
            except DexServiceError as error:
                if error.code is grpc.StatusCode.NOT_FOUND:
                    raise _not_found(session_id) from None
                if error.code is not grpc.StatusCode.INVALID_ARGUMENT:
                    raise SessionUnavailableError(
                        f"the live events of session {session_id!r} broke off: {error.detail}; "
                        "read on from the newest resume_token"
                    ) from error
                raise InvalidInputError(
                    f"resume_token {token!r} belongs to no events of session {session_id!r}; "
                    'use "" for all that are kept'
                ) from None
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
        deadline = time.monotonic() + timeout_s
        await self._wait(session_id, resources.turns_done, turns_done, deadline)
        return await self._snapshot(session_id)

    async def wait_until_settled(
        self, session_id: str, *, turns_done: int, timeout_s: float
    ) -> AgentSnapshot:
        """Wait until so many turns have ended, or the session waits for a person.

        Raises:
            TurnWaitTimeoutError: Neither happened in ``timeout_s`` seconds; the session goes on.
            SessionNotFoundError, SessionClosedError: There is no open session of this id.
        """
        _check_session_id(session_id)
        deadline = time.monotonic() + timeout_s
        while True:
            snapshot = await self._snapshot(session_id)
            if snapshot.turns_done >= turns_done or snapshot.pending_interrupts:
                return snapshot
            await self._wait(session_id, resources.revision, snapshot.revision + 1, deadline)

    async def _wait(self, session_id: str, attribute: Any, at_least: int, deadline: float) -> None:
        match = AttributeMatch.greater_than_or_equal(at_least)
        while True:
            # The SDK takes whole seconds; the rest of the last one is cut off here.
            left = max(deadline - time.monotonic(), 0.001)
            options = WaitForAttributeOptions(request_timeout=timedelta(seconds=math.ceil(left)))
            try:
                async with asyncio.timeout(left):
                    async with self._errors(session_id):
                        await self._client.wait_for_attribute_match(
                            session_id, attribute, match, options
                        )
                return
            except LongPollTimeoutError:
                continue
            except SessionUnavailableError:
                # An engine that restarts is back within the time given, or it is not.
                if time.monotonic() + _RECONNECT_S > deadline:
                    raise
                await asyncio.sleep(_RECONNECT_S)
            except (RequestTimeoutError, TimeoutError):
                raise TurnWaitTimeoutError(
                    f"session {session_id!r} did not get to {attribute.name} {at_least} in time: "
                    f"{await self._why_not(session_id)}; it goes on, wait again"
                ) from None

    async def _why_not(self, session_id: str) -> str:
        try:
            async with asyncio.timeout(_LOOK_S):
                snapshot = await self._snapshot(session_id)
        except (SessionUnavailableError, TimeoutError):
            return f"no Worker answers that serves Flow type {self._flow.get_flow_type()}"
        waiting = [f"{i.tool_name} ({i.interrupt_id})" for i in snapshot.pending_interrupts]
        if waiting:
            return f"it waits for an answer about {', '.join(waiting)}"
        return f"it is {snapshot.status}, {snapshot.turns_done} turns are done"

    async def _with_lock_retries(self, session_id: str, call: Callable[[], Awaitable[_T]]) -> _T:
        for number in range(_LOCK_TRIES):
            try:
                return await call()
            except RpcLockConflictError:
                # Another answer, its deadline, or a turn that opens: all are quick.
                if number == _LOCK_TRIES - 1:
                    raise SessionUnavailableError(
                        f"session {session_id!r} is busy with another command for the same thing; "
                        "nothing changed, call again"
                    ) from None
                await asyncio.sleep(random.uniform(0.005, 0.05))
        raise AssertionError("unreachable")

    @contextlib.asynccontextmanager
    async def _errors(self, session_id: str) -> AsyncIterator[None]:
        try:
            yield
        except FlowNotFoundError:
            raise _not_found(session_id) from None
        except FlowNotActiveOrNotFoundError:
            if await self._is_open(session_id):
                raise SessionUnavailableError(
                    f"session {session_id!r} could not be reached, try again"
                ) from None
            raise _closed(session_id) from None
        except WorkerInvocationError as error:
            if error.worker_code is not None or error.worker_error_type:
                raise
            raise SessionUnavailableError(
                f"no Worker answered for session {session_id!r}: {error.detail}; check that a "
                f"Worker serves Flow type {self._flow.get_flow_type()}, then call again"
            ) from error
        except DexServiceError as error:
            if error.code is not grpc.StatusCode.UNAVAILABLE:
                raise
            raise SessionUnavailableError(
                f"the engine could not be reached for session {session_id!r}: {error.detail}; "
                "does it run at the client's server_address (host:port, no scheme)? If so, call "
                "again"
            ) from error

    async def _is_open(self, session_id: str) -> bool:
        return await self._flow_status(session_id) is FlowStatus.RUNNING

    async def _flow_status(self, session_id: str) -> FlowStatus:
        async with self._errors(session_id):
            info = await self._client.describe_flow(session_id)
        if info.flow_type != self._flow.get_flow_type():
            raise InvalidInputError(
                f"session {session_id!r} is one of Flow type {info.flow_type!r}, this client is "
                f"for {self._flow.get_flow_type()!r}; build the client with the session's Flow"
            )
        return info.status

    def _check_images(self, images: Sequence[ImageReference]) -> list[Any]:
        if isinstance(images, (str, bytes)) or not isinstance(images, Sequence):
            raise InvalidInputError(f"images must be a list of ImageReference, got {images!r:.100}")
        for image in images:
            if not isinstance(image, ImageReference):
                raise InvalidInputError(
                    f"images must hold ImageReference objects, got {type(image).__name__}; upload "
                    "each image with put_image of the media store first"
                )
        if len(images) > MAX_IMAGES:
            raise InvalidInputError(
                f"a message has {len(images)} images, at most {MAX_IMAGES} are taken"
            )
        if images and not isinstance(self._flow.runner, ImageMessageBuilder):
            raise InvalidInputError(
                "this Flow takes no images, because it has no media store; pass media_store when "
                "you build it"
            )
        return [reference_to_json(image) for image in images]

    def _check_text(self, text: object, name: str = "text") -> None:
        if not isinstance(text, str):
            raise InvalidInputError(f"{name} must be a str, got {type(text).__name__}")
        if not text.strip():
            raise InvalidInputError(f"{name} must not be blank")
        try:
            size = len(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise InvalidInputError(
                f"{name} is no valid Unicode text: character {error.start} is a lone surrogate"
            ) from None
        limit = self._flow.options.max_message_bytes
        if size > limit:
            raise InvalidInputError(
                f"{name} has {size} bytes, at most {limit} are taken; "
                "see AgentSessionOptions.max_message_bytes"
            )


def _check_arguments(arguments: object, approved: bool) -> None:
    if not approved:
        raise InvalidInputError(
            "arguments belong to an approval; a rejection says what is wrong in its message"
        )
    if not isinstance(arguments, Mapping):
        raise InvalidInputError(
            "arguments must be a mapping of argument names to JSON values, got "
            f"{type(arguments).__name__}"
        )
    for name in arguments:
        if not isinstance(name, str):
            raise InvalidInputError(f"arguments must have str names, got {name!r}")
    try:
        size = len(json.dumps(dict(arguments), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"arguments must be JSON values: {error}") from None
    if size > MAX_ARGUMENTS_BYTES:
        raise InvalidInputError(
            f"arguments take {size} bytes as JSON, at most {MAX_ARGUMENTS_BYTES} are taken; "
            "reject the call with a message instead"
        )


def _closed(session_id: str) -> SessionClosedError:
    return SessionClosedError(
        f"session {session_id!r} is closed and takes no more commands; start another one"
    )


def _not_found(session_id: str) -> SessionNotFoundError:
    return SessionNotFoundError(f"there is no session {session_id!r}; start it with start_session")


def _check_interrupt_id(interrupt_id: object) -> None:
    if not isinstance(interrupt_id, str) or not interrupt_id.strip():
        raise InvalidInputError("interrupt_id must not be blank; see snapshot.pending_interrupts")
    if not interrupt_id.isprintable() or "/" in interrupt_id or len(interrupt_id) > 200:
        raise InterruptError(f"interrupt {interrupt_id!r} {_REFUSALS['not_pending']}")


def _check_session_id(session_id: object) -> None:
    if not isinstance(session_id, str):
        raise InvalidInputError(f"session_id must be a str, got {type(session_id).__name__}")
    if not session_id.strip():
        raise InvalidInputError("session_id must not be blank")
    if len(session_id) > MAX_SESSION_ID_LENGTH:
        raise InvalidInputError(
            f"session_id has {len(session_id)} characters, at most {MAX_SESSION_ID_LENGTH} "
            "are taken"
        )
    bad = sorted({c for c in session_id if c in _FORBIDDEN_IN_IDS or not c.isprintable()})
    if bad:
        raise InvalidInputError(
            f"session_id {session_id!r} must not contain {', '.join(map(repr, bad))}"
        )
