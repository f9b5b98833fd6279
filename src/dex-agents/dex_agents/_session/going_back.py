"""The commands of a client that go back to an earlier turn."""

from __future__ import annotations

from dex import RPCInvokeOptions

from dex_agents._contract import Json, TurnRemover
from dex_agents._errors import (
    InvalidInputError,
    NewerTurnError,
    RequestIdReusedError,
    SessionUnavailableError,
    TurnOpenError,
    TurnTargetError,
)
from dex_agents._session import resources
from dex_agents._session.branch import Branch, messages_of, read_branch, read_pages
from dex_agents._session.commands import repeated_with
from dex_agents._session.connection import SessionConnection
from dex_agents._session.encoding import EncodingError, encode
from dex_agents._session.live_turns import is_removed
from dex_agents._session.records import message_digest
from dex_agents._session.rewind import MAX_GAPS, MAX_NOTE_BYTES, known_turn
from dex_agents._session.views import RewoundSession

TURNS_AT_ONCE = 20
_TRIES = 20


async def rewind(
    connection: SessionConnection,
    session_id: str,
    before_turn_id: str,
    expected_last_turn_id: str | None,
    request_id: str,
) -> RewoundSession:
    """Remove the turns from the given one on; a known request id acts once."""
    known = resources.rewinds.load(message_digest(request_id))
    for _ in range(_TRIES):
        branch = await read_branch(connection, session_id)
        kept = _newest_before(branch, before_turn_id)
        options = RPCInvokeOptions(
            load_attribute_map_instances=(
                known,
                resources.outcomes.load(resources.page_key(kept)),
            )
        )
        request = {
            "request_id": request_id,
            "before_turn": before_turn_id,
            "expected_last_turn": expected_last_turn_id,
            "finished_turns": branch.header.finished_turns,
            "note": await _note(connection, session_id, branch, before_turn_id),
        }
        with repeated_with("request_id", request_id):
            rpc = connection.flow.rewind_rpc
            answer = await connection.command(rpc, session_id, request, options)
        refused = answer.get("refused")
        if refused is None:
            return RewoundSession(
                session_id=session_id,
                removed_turns=tuple(f"t{number}" for number in answer["removed"]),
                last_turn_id=f"t{answer['last_turn']}",
                next_turn_id=f"t{answer['next_turn']}",
            )
        if refused != "moved_on":
            raise _refusal(session_id, before_turn_id, request_id, answer)
    raise SessionUnavailableError(
        f"session {session_id!r} goes on all the time; nothing changed, call again"
    )


def _newest_before(branch: Branch, turn_id: str) -> int:
    """The turn that is the newest behind a rewind to before this one; 0 if there is none.

    No other rewind can make it another one: it removes this turn, too, or none before it.
    """
    first = known_turn(branch.header, turn_id)
    return max((turn for turn in branch.header.live_turns() if turn < first), default=0)


async def _note(
    connection: SessionConnection, session_id: str, branch: Branch, before_turn_id: str
) -> Json:
    """What the runner must know of the turns that would be removed."""
    first = known_turn(branch.header, before_turn_id)
    runner = connection.flow.runner
    if not first or not isinstance(runner, TurnRemover):
        return None
    if is_removed(branch.header.removed, first):
        return None  # refused, or done already
    note = branch.note
    turns = [number for number in branch.readable_turns() if number >= first]
    while turns:
        pages = await read_pages(connection, session_id, turns[:TURNS_AT_ONCE])
        turns = turns[len(pages) :]
        note = runner.note_removed(note, messages_of(pages))
    try:
        size = len(encode(note))
    except EncodingError as error:
        raise InvalidInputError(f"the runner's note of removed turns is no JSON: {error}") from None
    if size > MAX_NOTE_BYTES:
        raise InvalidInputError(
            f"the runner's note of removed turns has {size} bytes, at most {MAX_NOTE_BYTES} are "
            "kept; fork the session instead"
        )
    return note


def _refusal(session_id: str, turn_id: str, request_id: str, answer: Json) -> Exception:
    where = f"session {session_id!r}"
    match answer["refused"]:
        case "other_request":
            return RequestIdReusedError(
                f"request id {request_id!r} has rewound {where} to before "
                f"{answer['before_turn']!r} already; nothing changed, use another id"
            )
        case "open":
            return TurnOpenError(
                f"turn {answer['turn_id']} of {where} is open; wait for its end with "
                "wait_for_turn, or stop it with cancel_turn, then rewind"
            )
        case "waiting":
            return TurnOpenError(
                f"{where} has a message that waits for its turn; wait for the turn's end with "
                "wait_for_turn, then rewind"
            )
        case "newer":
            return NewerTurnError(
                f"{where} was not rewound: turn t{answer['last_turn']} has ended, which is newer "
                "than expected_last_turn_id; look at it, then rewind with its id, or without one"
            )
        case "unknown_seen":
            return TurnTargetError(
                f"{where} cannot be rewound: expected_last_turn_id is none of its finished turns, "
                f"t1 to t{answer['last_turn']}; take AgentMessage.turn_id of the newest message"
            )
    return TurnTargetError(f"{where} cannot be rewound: {target_refusal(turn_id, answer)}")


def target_refusal(turn_id: str, answer: Json) -> str:
    """Why a turn is no target."""
    match answer["refused"]:
        case "unknown":
            last = answer["last_turn"]
            finished = f"t1 to t{last}" if last else "of which there is none yet"
            return (
                f"{turn_id!r:.100} is none of its finished turns, {finished}; wait for the turn's "
                "end, or see AgentMessage.turn_id of list_messages"
            )
        case "removed":
            left = ", ".join(f"t{number}" for number in answer["left"])
            return f"turn {turn_id} was removed by an earlier rewind; the newest left are {left}"
        case "first":
            return (
                f"there is no turn before {turn_id} to go back to; start a new session with "
                "start_session"
            )
        case "forgotten":
            return (
                f"what the model read before turn {turn_id} is no longer kept, see "
                "CompactionPolicy.retained_turns; choose a later turn"
            )
    return (
        f"it has {MAX_GAPS} ranges of removed turns already; rewind it to an earlier turn, or "
        "start a new session"
    )
