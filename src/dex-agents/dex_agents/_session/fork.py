"""Forked sessions: what one starts with, and the pieces in which its pages arrive.

A Step cannot read another Flow, so the client carries the pages, in pieces that fit a task. Until the
last one has arrived the new session answers no command; a copy that breaks off is gone on with by the
same call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dex import Context

from dex_agents import _failpoints
from dex_agents._contract import Json
from dex_agents._session import resources
from dex_agents._session.encoding import decode, encode
from dex_agents._session.live_turns import is_removed
from dex_agents._session.records import Header, LastTurn
from dex_agents._session.rewind import TURNS_NAMED, find_summary, known_turn


def choose_turn(header: Header, before: str | None, after: str | None) -> int | dict[str, Json]:
    """The newest turn that a fork has, or why there is none."""
    live = header.live_turns()
    target = before if before is not None else after
    if target is None:
        return live[-1] if live else {"refused": "empty"}
    number = known_turn(header, target)
    if not number:
        return {"refused": "unknown", "last_turn": header.finished_turns}
    if is_removed(header.removed, number):
        return {"refused": "removed", "left": live[-TURNS_NAMED:]}
    kept = [turn for turn in live if turn < number or (after is not None and turn == number)]
    return kept[-1] if kept else {"refused": "first"}


def fork_header(source: Header, summaries: list[int], last: int) -> Header | None:
    """Where a fork that ends with turn ``last`` stands; ``None`` if pages that it needs are gone."""
    summary = find_summary(source, summaries, last)
    if summary is None:
        return None
    return Header(
        turns_started=last,
        next_sequence=source.next_sequence,
        summarized_turns=summary,
        removed=[list(pair) for pair in source.removed if pair[1] < last],
        forgotten_turns=min(source.forgotten_turns, last),
    )


def read_fork(context: Context) -> Json:
    """What the session was forked from, and where it stands."""
    fork, header = resources.fork.get(context), resources.header.get(context)
    return {
        "fork": decode(fork) if fork else None,
        "header": decode(header) if header else None,
    }


def is_incomplete(context: Context) -> bool:
    """Whether a part of what the session starts with has not arrived yet."""
    fork = resources.fork.get(context)
    return bool(fork) and not decode(fork)["is_complete"]


def take_piece(context: Context, given: Mapping[str, Any]) -> None:
    """Store a piece; the last one makes the session one that answers."""
    _failpoints.reach("fork.before")
    if not is_incomplete(context):
        return  # another call was faster
    fork = decode(resources.fork.get(context))
    for page in given.get("pages") or ():
        if page["messages"]:
            resources.messages.set(context, page["key"], encode(page["messages"]))
        if known := page.get("outcome"):
            # That the source was closed with it is nothing that this session knows of itself.
            outcome = replace(LastTurn.from_json(known), is_by_close=False)
            stored = encode(outcome.to_json())
            resources.outcomes.set(context, page["key"], stored)
            if page["key"] == resources.page_key(fork["last_turn"]):
                resources.last_turn.set(context, resources.LAST_TURN_KEY, stored)
    if summary := given.get("summary"):
        resources.summaries.set(context, summary["key"], encode(summary["data"]))
        resources.summary_marks.set(context, summary["key"], encode(None))
    if given.get("is_last"):
        resources.fork.set(context, encode({**fork, "is_complete": True}))
