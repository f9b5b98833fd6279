"""Messages that steer the open turn.

Each waits twice: as text in ``steering``, for the next model call, and as a place in the queue of
user messages. A model call that took it leaves a mark; the queue's place then opens no turn. So
it acts once whatever happens to the turn, and nothing needs to be moved.
"""

from __future__ import annotations

from dataclasses import dataclass

from dex import AsyncContext, Context

from dex_agents._contract import AgentMessage, Json
from dex_agents._session import resources
from dex_agents._session.encoding import decode, encode
from dex_agents._session.records import (
    Header,
    TurnState,
    content_digest,
    message_digest,
    message_to_json,
)

MAX_STEERING_BYTES = 16 * 1024
"""Longest text, in bytes of UTF-8: it goes along with each model call until one has taken it."""
MAX_WAITING = 8
_TURN_BYTES = 256 * 1024  # as stored; the rest of a turn's steering opens the next one
_TAKEN = encode(None)


def add(context: Context, message: dict[str, Json], accepted_ms: int) -> None:
    """Store a message for the open turn, and its place in the queue."""
    digest = message_digest(message["id"])
    # Keys say the order, so none may be before another one, whatever clocks say.
    newest = max(map(_moment, resources.steering.get_all_instance_keys(context)), default=0)
    key = f"{max(accepted_ms, newest + 1):014d}.{digest}"
    resources.accepted.set(context, digest, encode(content_digest(message)))
    resources.steering.set(context, key, encode(message))
    resources.user_messages.publish(context, encode({**message, "steering": key}))


def _moment(key: str) -> int:
    return int(key.partition(".")[0])


def count_waiting(context: Context) -> int:
    """How many wait for a model call."""
    keys = resources.steering.get_all_instance_keys(context)
    return sum(resources.steering.get(context, key) != _TAKEN for key in keys)


def was_taken(context: AsyncContext, message: dict[str, Json]) -> bool:
    """Whether a model call has had what is now first in the queue; forgets its text or mark."""
    key = message.get("steering")
    if key is None:
        return False
    stored = resources.steering.get(context, key)
    resources.steering.delete(context, key)
    return bool(stored == _TAKEN)


@dataclass(frozen=True)
class Offered:
    """One message that a model call may take."""

    key: str
    given: dict[str, Json]
    message: AgentMessage


def waiting(context: AsyncContext) -> list[tuple[str, dict[str, Json]]]:
    """Keys and messages, oldest first."""
    found = []
    for key in sorted(resources.steering.get_all_instance_keys(context)):
        stored = resources.steering.get(context, key)
        if stored and stored != _TAKEN:
            found.append((key, decode(stored)))
    return found


def has_room(state: TurnState, offered: list[Offered]) -> bool:
    """Whether a turn may take these too."""
    stored = [*state.steered, *(message_to_json(item.message) for item in offered)]
    return len(encode(stored)) <= _TURN_BYTES


def note_taken(header: Header, state: TurnState, offered: list[Offered]) -> None:
    """Note in header and turn that a model call has had these."""
    for item in offered:
        header.remember_message(item.given, header.turns_started)
        state.steered.append(message_to_json(item.message))


def store_taken(context: AsyncContext, offered: list[Offered]) -> None:
    """Leave the marks."""
    for item in offered:
        resources.steering.set(context, item.key, _TAKEN)
        resources.accepted.delete(context, message_digest(item.given["id"]))
