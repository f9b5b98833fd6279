"""The marks that interrupts leave, so that an answer may be given again when nobody heard it counted.

An interrupt goes when its answer is taken in. Its mark stays through the turn that follows, and
with the next one whatever is left of the interrupts of turns that have ended goes too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from dex import AsyncContext, AttributeMapNotLoadedError, Context

from dex_agents._contract import Json
from dex_agents._session import resources
from dex_agents._session.encoding import decode, encode
from dex_agents._session.records import StoredInterrupt, message_digest, turn_number

# Marks that are no digests of answers. Earlier releases leave none when a deadline passes.
_EXPIRED = "expired"
_ANSWERED = "answered"
_TURN_OF_INTERRUPT = re.compile(r"t([1-9]\d{0,8})\.")


def store(context: AsyncContext, interrupt_id: str, interrupt: bytes) -> None:
    """Ask a person; answerable from this commit on."""
    resources.interrupts.set(context, interrupt_id, interrupt)
    resources.asked.set(context, interrupt_id, encode(None))


def find(context: AsyncContext | Context, interrupt_id: str) -> StoredInterrupt | None:
    """What is stored of an interrupt that is open."""
    stored = resources.interrupts.get(context, interrupt_id)
    return StoredInterrupt.from_json(decode(stored)) if stored else None


def take_in(context: AsyncContext, interrupt_id: str) -> dict[str, Json] | None:
    """End a wait: its answer, or ``None`` if its deadline has passed first.

    What it waited for may begin from this commit on.
    """
    interrupt = find(context, interrupt_id)
    answer = interrupt.answer if interrupt is not None else None
    resources.interrupts.delete(context, interrupt_id)
    resources.unapproved.delete(context, interrupt_id)
    if answer is None:
        resources.asked.set(context, interrupt_id, encode(_EXPIRED))
    return answer


def why_gone(context: Context, interrupt_id: str) -> str:
    """Why nothing takes an answer to an interrupt that is not open: a key of the refusals."""
    mark = resources.asked.get(context, interrupt_id)
    if not mark:
        asked_in = _TURN_OF_INTERRUPT.match(interrupt_id)
        is_old = asked_in is not None and int(asked_in[1]) <= (
            resources.turns_done.get(context) or 0
        )
        return "forgotten" if is_old else "unknown"
    known = decode(mark)
    if known is None:
        return "turn_ended"
    return "expired" if known == _EXPIRED else "answered"


def unanswered_calls(context: AsyncContext) -> set[str]:
    """Keys of the calls that wait for a person; none of a Step of an earlier release."""
    try:
        marks = resources.asked.get_all_instance_keys(context)
    except AttributeMapNotLoadedError:
        return set()
    # ``t1.1.0.w2`` is the second that call ``t1.1.0`` has asked while it ran.
    return {
        ".".join(key.split(".")[:3])
        for key in marks
        if decode(resources.asked.get(context, key)) is None
    }


def has_taken(context: Context, interrupt_id: str, given: Mapping[str, Json]) -> bool | None:
    """Whether an interrupt has taken just this answer; ``None`` if it has taken none of this id."""
    answer_id = given.get("answer_id")
    mark = resources.asked.get(context, interrupt_id)
    if not mark or not answer_id:
        return None
    known_id, _, content = str(decode(mark)).partition(".")
    if known_id != message_digest(answer_id):
        return None
    return content in ("", _content_digest(given))  # an older release has kept the id alone


def _content_digest(given: Mapping[str, Json]) -> str:
    content = {name: value for name, value in given.items() if value is not None}
    return message_digest(json.dumps(content, sort_keys=True))


def note_answer(context: Context, interrupt_id: str, given: Mapping[str, Json]) -> None:
    """Remember which answer an interrupt has taken."""
    answer_id = given.get("answer_id")  # earlier clients give none
    if answer_id:
        mark = f"{message_digest(answer_id)}.{_content_digest(given)}"
    else:
        mark = _ANSWERED
    resources.asked.set(context, interrupt_id, encode(mark))


def forget_before(context: AsyncContext, opening_turn: int) -> None:
    """Drop what ended turns have left; of the newest one, answers may still be repeated."""
    for interrupt_id in resources.asked.get_all_instance_keys(context):
        asked_in = turn_number(interrupt_id.split(".")[0])
        if asked_in < opening_turn:
            resources.interrupts.delete(context, interrupt_id)
        if asked_in < opening_turn - 1:
            resources.asked.delete(context, interrupt_id)
