"""Rewinding a session: from which turn on nothing counts any more.

Pages stay as they are. A rewind is one commit of the header, so a crash leaves what was before or
what is after; the next turn gets a number that was never used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from dex import Context

from dex_agents import _failpoints
from dex_agents._contract import Json
from dex_agents._session import resources
from dex_agents._session.encoding import decode, encode
from dex_agents._session.live_turns import is_removed, live_turns, removed_with
from dex_agents._session.records import Header, message_digest, turn_number

MAX_GAPS = 1_000
"""Ranges of removed turns between turns that count: they are part of the header."""
MAX_NOTE_BYTES = 256 * 1024
_TURN_ID = re.compile(r"t[1-9][0-9]{0,8}")


def known_turn(header: Header, turn_id: str) -> int:
    """The number of a finished turn, or 0 if the session has none of this id."""
    if not _TURN_ID.fullmatch(turn_id) or turn_number(turn_id) > header.finished_turns:
        return 0
    return turn_number(turn_id)


def find_summary(header: Header, summaries: Iterable[int], last: int) -> int | None:
    """The summary that stands before the pages up to turn ``last``.

    A summary whose own turn counts is of turns that count, as rewinds remove all behind a turn.

    Returns:
        The turn that it is named by, 0 for none; ``None`` if pages are gone that would be needed.
    """
    known = {*summaries, header.summarized_turns}
    found = max((s for s in known if s <= last and not is_removed(header.removed, s)), default=0)
    needed = live_turns(header.removed, found + 1, last)
    return None if needed and needed[0] <= header.forgotten_turns else found


def read_summary_marks(context: Context) -> list[int]:
    """The turns that summaries are named by."""
    return [int(key) for key in resources.summary_marks.get_all_instance_keys(context)]


def read_branch(context: Context) -> Json:
    """What a client needs to know before it asks for a rewind or a fork."""
    data = resources.header.get(context)
    note = resources.removal_note.get(context, resources.REMOVAL_NOTE_KEY)
    return {
        "header": decode(data) if data else Header().to_json(),
        "summaries": read_summary_marks(context),
        "note": decode(note) if note else None,
    }


def rewind(context: Context, given: dict[str, Any]) -> Json:
    """Remove the turns from the given one on, if that is possible; what became of it.

    The caller holds the lock of the header, without which no turn opens.
    """
    _failpoints.reach("rewind.before", context.flow_id)
    key = message_digest(given["request_id"])
    if stored := resources.rewinds.get(context, key):
        earlier = decode(stored)
        if earlier["before_turn"] != given["before_turn"]:
            return {"refused": "other_request", "before_turn": earlier["before_turn"]}
        return earlier
    if resources.closing.get(context):
        return {"refused": "closed"}
    data = resources.header.get(context)
    header = Header.from_json(decode(data)) if data else Header()
    result = _removed(context, header, given)
    if "refused" in result:
        return result
    for mark in read_summary_marks(context):
        if is_removed(header.removed, mark):
            resources.summaries.delete(context, resources.page_key(mark))
            resources.summary_marks.delete(context, resources.page_key(mark))
    if given["note"] is not None:
        resources.removal_note.set(context, resources.REMOVAL_NOTE_KEY, encode(given["note"]))
    resources.header.set(context, encode(header.to_json()))
    resources.revision.set(context, (resources.revision.get(context) or 0) + 1)
    resources.rewinds.set(context, key, encode(result))
    return result


# Of the turns that are left, in the refusal of a removed one.
TURNS_NAMED = 10


def _removed(context: Context, header: Header, given: dict[str, Any]) -> dict[str, Json]:
    """Change the header, or say why not."""
    if header.turn_id:
        return {"refused": "open", "turn_id": header.turn_id}
    if not header.turns_started or resources.accepted.get_all_instance_keys(context):
        return {"refused": "waiting"}
    first = known_turn(header, given["before_turn"])
    live = header.live_turns()
    if not first:
        return {"refused": "unknown", "last_turn": header.finished_turns}
    if is_removed(header.removed, first):
        return {"refused": "removed", "left": live[-TURNS_NAMED:]}
    kept = [turn for turn in live if turn < first]
    if not kept:
        return {"refused": "first"}
    summary = find_summary(header, read_summary_marks(context), kept[-1])
    if summary is None:
        return {"refused": "forgotten"}
    if (seen := given.get("expected_last_turn")) is not None:
        if not known_turn(header, seen):
            return {"refused": "unknown_seen", "last_turn": header.finished_turns}
        if live[-1] > turn_number(seen):
            return {"refused": "newer", "last_turn": live[-1]}
    if header.finished_turns != given["finished_turns"]:
        return {"refused": "moved_on"}  # the note was made of other turns
    removed = removed_with(header.removed, first, header.finished_turns)
    if len(removed) > MAX_GAPS:
        return {"refused": "gaps"}
    header.removed = removed
    if outcome := resources.read_outcome(context, kept[-1]):
        resources.last_turn.set(context, resources.LAST_TURN_KEY, outcome)
    header.summarized_turns = summary
    header.history_bytes = None
    return {
        "before_turn": given["before_turn"],
        "removed": live[len(kept) :],
        "last_turn": kept[-1],
        "next_turn": header.turns_started + 1,
    }
