"""What a session stores and where messages wait.

Shared by all session Flows; a Stream is not, each Flow has its own. The plain Attributes go along
with every task, so they stay tiny; everything else is in maps and loaded by name.
"""

from __future__ import annotations

from typing import Any

from dex import (
    Attribute,
    AttributeMap,
    AttributeMapNotLoadedError,
    Channel,
    ChannelMap,
    Context,
)

header = Attribute("header", bytes)
"""Where the session stands; written only by Steps that run alone in a turn."""
turns_done = Attribute("turns_done", int)
"""How many turns have ended, for clients that wait."""
revision = Attribute("revision", int)
"""Grows whenever a turn ends or starts to wait for a person, for clients that wait."""
cancel_asked = Attribute("cancel_asked", str)
"""The turn that a cancel is about to end, so that none of its interrupts takes an answer."""
fork = Attribute("fork", bytes)
"""What a forked session was forked from, and whether all that it starts with has arrived."""
closing = Attribute("closing", bytes)
"""Why the session is being closed, from the moment on at which it takes no more commands."""

messages = AttributeMap("messages", bytes)
"""One immutable page for each turn, by turn number."""
summaries = AttributeMap("summaries", bytes)
"""What stands for the turns up to the one it is named by. Older ones are for a rewind behind the
newest."""
summary_marks = AttributeMap("summary_marks", bytes)
"""An empty mark for each summary. Small, unlike those."""
rewinds = AttributeMap("rewinds", bytes)
"""What each rewind did, by digest of its request id."""
removal_note = AttributeMap("removal_note", bytes)
"""What the runner needs to know of removed turns, under one key."""
turn_states = AttributeMap("turn_states", bytes)
"""The open turn, by turn id; small."""
run_states = AttributeMap("run_states", bytes)
"""What the runner needs to go on with the open turn, by turn id."""
tool_contexts = AttributeMap("tool_contexts", bytes)
"""What the tool Steps of a response share, by batch."""
records = AttributeMap("records", bytes)
"""Records of calls whose response is not consumed yet, by batch and index."""
call_notes = AttributeMap("call_notes", bytes)
"""The short form of each such record, for the note of a failed turn."""
interrupts = AttributeMap("interrupts", bytes)
"""What a person is asked, by interrupt id."""
asked = AttributeMap("asked", bytes)
"""A mark for each interrupt, and the digest of the answer that it took. It outlives the interrupt, so
that an answer whose confirmation was lost can be given again.
"""
unapproved = AttributeMap("unapproved", bytes)
"""An empty mark for each call that has provably not started: one that a person has not approved, or
an ordered write whose turn has not come."""

accepted = AttributeMap("accepted", bytes)
"""User messages that no turn was opened for yet, by digest of their id: a digest of their content,
or null of an older release."""
QUEUE_LOCK = accepted.lock("queue")
"""What sends a message holds it, so that what waits is counted exactly. No message's digest is this
name, and no Step takes it."""
steering = AttributeMap("steering", bytes)
"""Messages for the open turn by time, and marks of those it took whose place in the queue is left.
"""
last_turn = AttributeMap("last_turn", bytes)
"""How the newest turn that counts ended, under one key."""
outcomes = AttributeMap("outcomes", bytes)
"""How each finished turn ended, by turn number, for the moment at which it is the newest again."""

user_messages = Channel("user_messages", bytes)
answers = ChannelMap("answers", bytes)
"""Wakes the Step that waits for an interrupt's answer; the answer itself is in the interrupt."""
finished_calls = ChannelMap("finished_calls", int)
"""Indexes of the calls of a batch that have their record."""
OF_A_TURN: tuple[ChannelMap[Any], ...] = (answers, finished_calls)
"""What is in them when a turn opens is of Steps that were cancelled: nobody waits for it any more."""

LAST_TURN_KEY = "newest"
REMOVAL_NOTE_KEY = "newest"
STREAM_NAME = "AgentEvents"


def page_key(turn_number: int) -> str:
    """The page of a turn."""
    return f"{turn_number:08d}"


def read_outcome(context: Context, turn_number: int) -> bytes | None:
    """How a turn ended, if the caller has loaded it, which clients of earlier releases do not."""
    try:
        return outcomes.get(context, page_key(turn_number)) or None
    except AttributeMapNotLoadedError:
        return None


def call_key(batch: str, index: int) -> str:
    """A call of a batch; also the id of its interrupt."""
    return f"{batch}.{index}"
