"""The client's part of a fork: it starts the new session and carries what it starts with."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from dex import FlowAlreadyStartedError, RPCInvokeOptions, StartFlowOptions

from dex_agents._contract import Json
from dex_agents._errors import SessionAlreadyExistsError, SessionNotFoundError, TurnTargetError
from dex_agents._session import resources
from dex_agents._session.branch import read_branch, read_pages
from dex_agents._session.connection import SessionConnection
from dex_agents._session.encoding import encode
from dex_agents._session.fork import choose_turn, fork_header
from dex_agents._session.going_back import TURNS_AT_ONCE, target_refusal
from dex_agents._session.live_turns import live_turns
from dex_agents._session.records import Header
from dex_agents._session.views import ForkedSession


async def fork(
    connection: SessionConnection,
    session_id: str,
    new_session_id: str,
    before_turn_id: str | None,
    after_turn_id: str | None,
) -> ForkedSession:
    """Start a session with the turns of another one; the new id makes it happen once."""
    content = [connection.flow.get_flow_type(), session_id, before_turn_id, after_turn_id]
    request = f"fork-{hashlib.sha256(encode(content)).hexdigest()[:40]}"
    if not await _exists(connection, new_session_id):
        await _start(connection, session_id, new_session_id, request, before_turn_id, after_turn_id)
    stored = await connection.call(connection.flow.read_fork_rpc, new_session_id)
    plan = stored["fork"]
    if plan is None or plan["request"] != request:
        raise _already_started(new_session_id)
    if not plan["is_complete"]:
        await _copy(connection, session_id, new_session_id, Header.from_json(stored["header"]))
    return ForkedSession(
        session_id=new_session_id,
        source_session_id=session_id,
        last_turn_id=f"t{plan['last_turn']}",
        next_turn_id=f"t{plan['last_turn'] + 1}",
    )


async def _exists(connection: SessionConnection, session_id: str) -> bool:
    try:
        await connection.status(session_id)
    except SessionNotFoundError:
        return False
    return True


def _already_started(session_id: str) -> SessionAlreadyExistsError:
    return SessionAlreadyExistsError(
        f"session {session_id!r} was already started, and not by a fork with these arguments; use "
        "another session id"
    )


async def _start(
    connection: SessionConnection,
    session_id: str,
    new_session_id: str,
    request: str,
    before_turn_id: str | None,
    after_turn_id: str | None,
) -> None:
    branch = await read_branch(connection, session_id)
    last = choose_turn(branch.header, before_turn_id, after_turn_id)
    target = before_turn_id or after_turn_id or ""
    if isinstance(last, dict):
        raise _refusal(session_id, target, last)
    header = fork_header(branch.header, list(branch.summaries), last)
    if header is None:
        raise _refusal(session_id, target or f"t{last}", {"refused": "forgotten"})
    plan = {"request": request, "source": session_id, "last_turn": last, "is_complete": False}
    options = (
        StartFlowOptions(request_id=f"{request}-{new_session_id}", ignore_already_started=True)
        .with_attribute(resources.fork, encode(plan))
        .with_attribute(resources.header, encode(header.to_json()))
        .with_attribute(resources.turns_done, last)
        .with_attribute(resources.revision, 1)
    )
    try:
        async with connection.errors(new_session_id):
            await connection.client.start_flow(connection.flow, new_session_id, encode({}), options)
    except FlowAlreadyStartedError:
        raise _already_started(new_session_id) from None


async def _copy(
    connection: SessionConnection, session_id: str, new_session_id: str, header: Header
) -> None:
    rpc = connection.flow.take_piece_rpc
    if header.summarized_turns:
        summary = await _summary(connection, session_id, new_session_id, header)
        await connection.command(rpc, new_session_id, {"summary": summary})
    first = header.forgotten_turns + 1
    # Page 0 holds what the session was given at its creation.
    turns = [0, *live_turns(header.removed, first, header.finished_turns)]
    while turns:
        some = turns[:TURNS_AT_ONCE]
        pages = await read_pages(connection, session_id, some, with_outcomes=True)
        for turn, page in zip(turns, pages, strict=False):
            if turn > header.summarized_turns and not page["messages"]:
                raise _gone(session_id, new_session_id)
        turns = turns[len(pages) :]
        await connection.command(rpc, new_session_id, {"pages": _with_origin(pages, session_id)})
    await connection.command(rpc, new_session_id, {"is_last": True})


async def _summary(
    connection: SessionConnection, session_id: str, new_session_id: str, header: Header
) -> Json:
    key = resources.page_key(header.summarized_turns)
    options = RPCInvokeOptions(load_attribute_map_instances=(resources.summaries.load(key),))
    rpc = connection.flow.read_summary_rpc
    data = await connection.call(rpc, session_id, {"key": key}, options)
    if data is None:
        raise _gone(session_id, new_session_id)
    return {"key": key, "data": data}


def _with_origin(pages: Sequence[Any], session_id: str) -> Json:
    return [
        {
            **page,
            "messages": [
                {**message, "origin_session_id": message.get("origin_session_id") or session_id}
                for message in page["messages"]
            ],
        }
        for page in pages
    ]


def _gone(session_id: str, new_session_id: str) -> TurnTargetError:
    return TurnTargetError(
        f"what the fork needs of session {session_id!r} was deleted before it was copied, by a rewind "
        f"or by CompactionPolicy.retained_turns; close session {new_session_id!r}, which stays without "
        "use, and fork a turn that is still there under another id"
    )


def _refusal(session_id: str, turn_id: str, answer: dict[str, Json]) -> TurnTargetError:
    why = (
        "it has no finished turn yet; wait for one with wait_for_turn"
        if answer["refused"] == "empty"
        else target_refusal(turn_id, answer)
    )
    return TurnTargetError(f"session {session_id!r} cannot be forked: {why}")
