"""The guards for a plain history answer what ADK answers, also for a history that is not plain."""

from __future__ import annotations

import random
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any

import pytest
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.sessions.session import Session
from google.genai import types

from dex_agents_google_adk._adk_workarounds import plain_history
from dex_agents_google_adk._attempt import Attempt, enter_attempt
from dex_agents_google_adk._late_copies import Original

REWINDS, TASKS, BRANCHES = plain_history.PATCHES


def events_of(rng: random.Random) -> list[Event]:
    """A history in which now and then something is not plain."""
    oddity = rng.choice((0.0, 0.1, 0.4))

    def odd(value: Any) -> Any:
        return value if rng.random() < oddity else None

    def one(index: int) -> Event:
        call_id = f"c{rng.randrange(4)}"
        part = rng.choice(
            (
                types.Part(text=f"text {index}"),
                types.Part(function_call=types.FunctionCall(id=call_id, name="look", args={})),
                types.Part(
                    function_response=types.FunctionResponse(
                        id=call_id,
                        name=rng.choice(("look", "finish_task")),
                        response={"result": rng.choice(("Task completed.", "no"))},
                    )
                ),
            )
        )
        summary = types.Content(role="model", parts=[types.Part(text="short")])
        compaction = EventCompaction(
            start_timestamp=0.0, end_timestamp=1.0, compacted_content=summary
        )
        return Event(
            invocation_id=f"i{index // 3}",
            author=rng.choice(("user", "root", "helper")),
            content=types.Content(role="model", parts=[part]),
            branch=odd(rng.choice(("a", "a.b", ""))),
            isolation_scope=odd(rng.choice(("s1", "s2"))),
            error_code=odd("INVOCATION_ABORTED"),
            actions=EventActions(
                rewind_before_invocation_id=odd(f"i{rng.randrange(4)}"), compaction=odd(compaction)
            ),
        )

    return [one(index) for index in range(rng.randrange(12))]


def late(rng: random.Random, events: list[Event]) -> list[Event]:
    """The same as late copies, some of which somebody has read or changed."""
    copies = [Original(event).copy() for event in events]
    for copy, event in zip(copies, events, strict=True):
        if rng.random() < 0.3:
            assert copy.actions is not None
        if rng.random() < 0.1:
            rewind = rng.choice((None, "i0"))
            copy.actions.rewind_before_invocation_id = rewind
            event.actions.rewind_before_invocation_id = rewind
    return copies


def ids(events: list[Event]) -> list[str]:
    return [event.id for event in events]


def answers(events: list[Event], context: dict[str, Any], *, guarded: bool) -> list[Any]:
    """What the three functions say of the events."""
    apply_rewinds, find_scope, get_events = (
        patch.guard(patch.original) if guarded else patch.original
        for patch in (REWINDS, TASKS, BRANCHES)
    )
    session = Session(id="s", app_name="a", user_id="u")
    session.events = events
    place = SimpleNamespace(session=session, **context)
    return [
        ids(apply_rewinds(events)),
        find_scope(session),
        *(
            ids(get_events(place, current_invocation=of_invocation, current_branch=of_branch))
            for of_invocation in (False, True)
            for of_branch in (False, True)
        ),
    ]


@pytest.mark.parametrize("seed", range(300))
def test_the_guards_say_what_adk_says(seed: int) -> None:
    rng = random.Random(seed)
    context: dict[str, Any] = {
        "branch": rng.choice((None, None, "a", "")),
        "agent": SimpleNamespace(mode=rng.choice(("chat", None, "single_turn"))),
        "node_path": rng.choice(("", "root@1")),
        "invocation_id": "i1",
    }
    events = events_of(rng)
    copies = late(rng, events)
    expected = answers(events, context, guarded=False)
    in_attempt = copy_context()
    in_attempt.run(enter_attempt, Attempt())
    for history in (events, copies):
        assert in_attempt.run(answers, history, context, guarded=True) == expected


def test_the_seeds_cover_histories_that_are_not_plain() -> None:
    histories = [events_of(random.Random(seed)) for seed in range(300)]

    def count(is_odd: Any) -> int:
        return sum(any(map(is_odd, events)) for events in histories)

    assert count(lambda event: event.actions.rewind_before_invocation_id) > 50
    assert count(lambda event: event.isolation_scope) > 50
    assert count(lambda event: event.branch) > 50


def test_a_plain_history_is_a_list_of_its_own() -> None:
    events = [Event(author="user"), Event(author="root")]
    live = REWINDS.guard(REWINDS.original)(events)
    assert live == events and live is not events
