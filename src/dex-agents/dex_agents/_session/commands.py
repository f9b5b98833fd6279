"""The commands of a client: each is one RPC that acts once, and what its refusal says."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from dex import (
    FlowAlreadyStartedError,
    LongPollTimeoutError,
    RPCInvokeOptions,
    RPCResult,
    StartFlowOptions,
)

from dex_agents._contract import Json
from dex_agents._errors import (
    InterruptError,
    InvalidInputError,
    RequestIdReusedError,
    SessionAlreadyExistsError,
    SessionClosedError,
    SessionUnavailableError,
    TurnWaitTimeoutError,
)
from dex_agents._session import resources
from dex_agents._session.checks import is_interrupt_id
from dex_agents._session.connection import SessionConnection, closed
from dex_agents._session.encoding import encode
from dex_agents._session.failures import clean_text
from dex_agents._session.reading import snapshot_data, stored_snapshot
from dex_agents._session.records import message_digest, turn_number
from dex_agents._session.views import ClosedSession
from dex_agents._session.waiting import wait_for_turns

_CANCEL_S = 10.0
_CLOSE_WAIT = timedelta(seconds=10)
_ONCE = ", and an answer cannot be changed; the same call again counts as this answer only with its answer_id"
_ANSWER_REFUSALS = {
    # A Worker of an earlier release does not say which it is.
    "not_pending": (
        "is not pending: it was answered, it expired, its turn ended, or it never existed"
    ),
    "already_answered": f"was already answered{_ONCE}",
    "expired": "has expired; the call counts as rejected",
    "arguments_differ": "asks for other arguments than the digest that was given",
}
_WHY_GONE = {
    "answered": f"is not pending: it was answered{_ONCE}",
    "expired": "is not pending: its deadline passed before anybody answered",
    "turn_ended": "is not pending: its turn ended before anybody answered",
    "forgotten": "is not pending: its turn has ended, and whether it was asked there is no longer kept",
    "unknown": "is not pending: this session never asked it",
}
_WAIT_REFUSALS = {
    "queue_full": "their turn, no more are taken; send again when a turn has ended",
    "steering_full": (
        "the next model call of the open turn, no more are taken; send again when it was made, or "
        "queue the message with send_user_message"
    ),
}


@contextlib.contextmanager
def repeated_with(name: str, value: str) -> Iterator[None]:
    """Says in the error of a lost answer how the command acts once."""
    try:
        yield
    except SessionUnavailableError as error:
        raise SessionUnavailableError(
            f"{error}; with {name}={value!r} the same call again acts once", command_id=value
        ) from None


async def start(
    connection: SessionConnection,
    session_id: str,
    text: str,
    images: Sequence[Json],
    state: Mapping[str, Json] | None,
    message_id: str | None = None,
) -> None:
    """Start a session. Its request id is made from all that was given, so it starts once."""
    flow_type = connection.flow.get_flow_type()
    content: list[Json] = [flow_type, session_id, text, *([images] if images else [])]
    if state is not None:
        content.append(dict(sorted(state.items())))
    if message_id is not None:
        content.append(["message_id", message_id])
    digest = hashlib.sha256(encode(content)).hexdigest()[:40]
    name = f"start-{digest}" if message_id is None else message_id
    first: dict[str, Json] = {"message": {"id": name, "text": text, "images": images}}
    if state is not None:
        first["state"] = dict(state)
    options = StartFlowOptions(request_id=f"start-{digest}", ignore_already_started=True)
    try:
        async with connection.errors(session_id):
            await connection.client.start_flow(connection.flow, session_id, encode(first), options)
        connection.remember(session_id)  # what was started before by this request is of this type
    except FlowAlreadyStartedError:
        raise SessionAlreadyExistsError(
            f"session {session_id!r} was already started with another message or state; "
            "use send_user_message, or another session id"
        ) from None


async def send(
    connection: SessionConnection,
    rpc: Callable[..., RPCResult[bytes]],
    session_id: str,
    message_id: str,
    text: str,
    images: Sequence[Json] = (),
) -> None:
    """Queue a message or steer with it; one of a known id is not taken again."""
    accepted = resources.accepted.load(message_digest(message_id))
    options = RPCInvokeOptions(
        lock_attribute_map_instances=(resources.QUEUE_LOCK,),
        load_attribute_map_instances=(accepted,),
    )
    message = {"id": message_id, "text": text, "images": list(images)}
    with repeated_with("message_id", message_id):
        answer = await connection.command(rpc, session_id, message, options)
    refused = answer.get("refused")
    if refused == "id_reused":
        raise RequestIdReusedError(
            f"message_id {message_id!r} was used for another message of session {session_id!r}; "
            "nothing was stored, give each message an id of its own"
        )
    if refused:
        raise InvalidInputError(
            f"session {session_id!r} has {answer['waiting']} messages that wait for "
            f"{_WAIT_REFUSALS[refused]}"
        )


async def answer_interrupt(
    connection: SessionConnection,
    session_id: str,
    interrupt_id: str,
    answer_id: str,
    given: dict[str, Json],
) -> None:
    """Answer an interrupt, which alone is locked meanwhile."""
    if not is_interrupt_id(interrupt_id):
        raise InterruptError(
            f"interrupt {interrupt_id!r:.200} of session {session_id!r} {_WHY_GONE['unknown']}; see "
            "snapshot.pending_interrupts"
        )
    options = RPCInvokeOptions(
        lock_attribute_map_instances=(resources.interrupts.lock(interrupt_id),),
        load_attribute_map_instances=(
            resources.interrupts.load(interrupt_id),
            resources.asked.load(interrupt_id),
        ),
    )
    rpc = connection.flow.resolve_interrupt_rpc
    request = {"interrupt_id": interrupt_id, "answer_id": answer_id, **given}
    with repeated_with("answer_id", answer_id):
        answer = await connection.command(rpc, session_id, request, options)
    refused = answer.get("refused")
    if not refused:
        return
    if refused == "id_reused":
        raise RequestIdReusedError(
            f"answer_id {answer_id!r} was used for another answer to interrupt {interrupt_id!r} of "
            f"session {session_id!r}; the first one counts"
        )
    why = answer["why"] if refused == "misfit" else _ANSWER_REFUSALS[refused]
    if refused == "not_pending":
        why = _WHY_GONE.get(answer.get("why", ""), why)
        snapshot = await stored_snapshot(connection, session_id)
        ids = [interrupt.interrupt_id for interrupt in snapshot.pending_interrupts]
        why += f"; pending are: {', '.join(ids) or 'none'}"
    raise InterruptError(f"interrupt {interrupt_id!r} of session {session_id!r} {why}")


async def cancel(connection: SessionConnection, session_id: str, turn_id: str | None) -> bool:
    """End the open turn, or only the given one, and wait for its end."""
    if turn_id is None:
        # Named before it is cancelled, so that the same again cannot hit the turn behind it.
        turn_id = await _open_turn(connection, session_id)
    if not turn_id:
        return False
    rpc = connection.flow.cancel_turn_rpc
    with repeated_with("turn_id", turn_id):
        answer = await connection.command(rpc, session_id, {"turn_id": turn_id})
        if not answer["turn_id"]:
            return False
        try:
            await wait_for_turns(connection, session_id, turn_number(turn_id), _CANCEL_S)
        except TurnWaitTimeoutError:
            raise SessionUnavailableError(
                f"turn {turn_id} of session {session_id!r} was stopped, and its end is stored as "
                f"soon as a Worker takes it; {connection.missing_worker}"
            ) from None
        except SessionClosedError:
            pass  # closed in between; the snapshot still tells
        newest = (await snapshot_data(connection, session_id))["cancelled_turn"]
    # A later turn was cancelled meanwhile: what became of this one is no longer kept apart.
    return bool(newest) and turn_number(newest) >= turn_number(turn_id)


async def _open_turn(connection: SessionConnection, session_id: str) -> str:
    data = await snapshot_data(connection, session_id)
    if data["closing"] is not None or not await connection.is_open(session_id):
        raise closed(session_id)
    return str(data["turn_id"])


async def close(connection: SessionConnection, session_id: str, reason: str) -> ClosedSession:
    """End the session, wait for its end, and count what it cut off."""
    try:
        rpc = connection.flow.close_session_rpc
        await connection.call(rpc, session_id, {"reason": clean_text(reason)})
        async with connection.errors(session_id, _CLOSE_WAIT.total_seconds()):
            await connection.client.wait_for_flow(session_id, _CLOSE_WAIT)
    except SessionClosedError:
        pass
    except LongPollTimeoutError:
        raise SessionUnavailableError(
            f"session {session_id!r} takes no more commands, and its end is stored as soon as "
            f"a Worker takes it; {connection.missing_worker}"
        ) from None
    return _closed_session(await snapshot_data(connection, session_id))


def _closed_session(data: Any) -> ClosedSession:
    last = data["last_turn"] or {}
    is_cut = data["closing"] is not None and last.get("is_by_close")
    return ClosedSession(
        # The first message is the start's input and in no queue.
        dropped_messages=data["queued_messages"] + bool(data["is_starting"]),
        cancelled_turn=last["turn_id"] if is_cut else "",
    )
