"""A late copy shows what a whole one shows, and shares nothing that can change with its original."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
from google.adk.events.event import Event
from google.adk.sessions.session import Session
from google.genai import types
from pydantic import TypeAdapter

from adk.test_history_cache import changeable, rich_event
from dex_agents_google_adk._adk_workarounds.contents_in_one_pass import contents_in_one_pass
from dex_agents_google_adk._events import dump_event, load_event
from dex_agents_google_adk._late_copies import Original, original_of, peek, untouched

STORED = dump_event(rich_event())
THREADS = 8


def whole() -> Event:
    return load_event(copy.deepcopy(STORED))


def session_of(event: Event) -> Session:
    session = Session(id="s", app_name="a", user_id="u")
    session.events = [event]
    return session


def changed(event: Event) -> Any:
    event.author = "somebody"
    event.content = None
    return event.model_dump()


def without_content(event: Event) -> Any:
    del event.content
    return hasattr(event, "content"), "content" in event.__dict__


def set_past_pydantic(event: Event) -> Any:
    object.__setattr__(event, "author", "somebody")
    return event.author, event.content


def updated(event: Event) -> Any:
    return event.model_copy(update={"author": "somebody"}).model_dump()


USES: dict[str, Callable[[Event], Any]] = {
    "fields": lambda event: {name: getattr(event, name) for name in Event.model_fields},
    "dump": lambda event: event.model_dump(),
    "order of a dump": lambda event: list(event.model_dump()),
    "dump behind a read": lambda event: (event.actions, list(event.model_dump(mode="json"))),
    "json": lambda event: event.model_dump_json(by_alias=True),
    "dump of what is set": lambda event: event.model_dump(exclude_unset=True),
    "stored form": dump_event,
    "dump of a session": lambda event: session_of(event).model_dump(),
    "json of a session": lambda event: session_of(event).model_dump_json(warnings="error"),
    "set fields": lambda event: event.model_fields_set,
    "private values": lambda event: event.usage_metadata.__pydantic_private__,  # type: ignore[union-attr]
    "dict": dict,
    "vars": vars,
    "repr": repr,
    "class": lambda event: (event.__class__, isinstance(event, Event), type(event).__name__),
    "copy": copy.copy,
    "deep copy": copy.deepcopy,
    "class of copies": lambda event: (type(copy.copy(event)), type(event.model_copy(deep=True))),
    "pickle": lambda event: pickle.loads(pickle.dumps(event)),
    "state": lambda event: event.__getstate__(),
    "update": updated,
    "validated": lambda event: TypeAdapter(list[Event]).validate_python([event]),
    "calls": lambda event: (event.get_function_calls(), event.get_function_responses()),
    "final": lambda event: (event.is_final_response(), event.message, event.node_name),
    "changed": changed,
    "deleted": without_content,
    "set past pydantic": set_past_pydantic,
    "no such attribute": lambda event: getattr(event, "nothing", None),
}


@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
def test_it_shows_what_a_whole_copy_shows(use: Callable[[Event], Any]) -> None:
    original = Original(whole())
    assert use(original.copy()) == use(whole())
    assert original.copy() == whole() == original.copy()
    assert original.model == whole()
    assert type(original.model) is Event


def test_only_what_is_read_is_copied() -> None:
    event = Original(whole()).copy()
    assert (event.author, event.branch, event.timestamp) == ("root", None, 1.0)
    assert peek(event, "actions").artifact_delta == {"file": 1}
    assert untouched(event, "content") is not None
    assert event.content is event.content
    assert untouched(event, "content") is None and untouched(event, "actions") is not None
    assert event.actions.state_delta is event.actions.state_delta
    event.actions.artifact_delta["other"] = 2
    assert peek(event, "actions").artifact_delta == {"file": 1, "other": 2}
    assert original_of(event) is not None
    content = event.content
    event.author = "somebody"
    assert type(event) is Event and original_of(event) is None
    assert event.content is content and event.actions.artifact_delta == {"file": 1, "other": 2}


def test_lists_that_are_empty_leave_the_content_unread() -> None:
    said = Event(author="root", content=types.Content(role="model", parts=[types.Part(text="a")]))
    event = Original(said).copy()
    assert (event.get_function_calls(), event.get_function_responses()) == ([], [])
    assert untouched(event, "content") is not None
    assert event.content is not None
    event.content.parts = [types.Part(function_call=types.FunctionCall(name="f"))]
    assert [call.name for call in event.get_function_calls()] == ["f"]


@pytest.mark.parametrize("begin", [lambda event: event.content, vars], ids=["field", "whole"])
def test_threads_that_read_at_once_get_the_same_values(begin: Callable[[Event], Any]) -> None:
    original = Original(whole())
    for _ in range(50):
        event = original.copy()
        together = threading.Barrier(THREADS)
        seen: list[tuple[Any, ...]] = []

        def read(event: Event = event, together: threading.Barrier = together) -> None:
            together.wait()
            begin(event)
            seen.append((event.content, event.actions, event.custom_metadata))  # noqa: B023

        threads = [threading.Thread(target=read) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(seen) == THREADS
        assert len({tuple(map(id, values)) for values in seen}) == 1


@pytest.mark.parametrize("agent", ["root", "helper"])
@pytest.mark.parametrize("keeps", [False, True])
def test_contents_of_requests_share_nothing_with_what_is_kept(agent: str, keeps: bool) -> None:
    call = types.FunctionCall(id="adk-1", name="look", args={"a": [1]})
    answer = types.FunctionResponse(id="adk-1", name="look", response={"b": [2]})
    image = types.Blob(data=b"p", mime_type="image/png")
    parts = [
        ("user", "user", types.Part(text="hello")),
        ("root", "model", types.Part(function_call=call)),
        ("root", "user", types.Part(function_response=answer)),
        ("root", "model", types.Part(inline_data=image)),
    ]
    kept = [
        Original(Event(author=author, content=types.Content(role=role, parts=[part])))
        for author, role, part in parts
    ]
    before = changeable([original.model for original in kept])
    stored = [original.model.model_dump() for original in kept]

    def request(events: list[Event]) -> list[types.Content]:
        contents = contents_in_one_pass(events, agent, keeps_call_ids=keeps)
        assert contents is not None and len(contents) == len(parts)
        return contents

    expected = request([original.model.model_copy(deep=True) for original in kept])
    for _ in range(2):
        events = [original.copy() for original in kept]
        made = request(events)
        assert agent != "root" or all(untouched(event, "content") for event in events)
        assert made == expected
        assert not before.keys() & changeable(made).keys()
        for content in made:
            content.role = "spoilt"
            content.parts = [*(content.parts or []), types.Part(text="spoilt")]
        assert [event.model_dump() for event in events] == [
            {**dump, "id": event.id, "timestamp": event.timestamp}
            for dump, event in zip(stored, events, strict=True)
        ]
    touched = [original.copy() for original in kept]
    assert touched[0].content is not None and touched[0].content.parts is not None
    touched[0].content.parts[0].text = "what a callback wrote"
    seen = request(touched)[0].parts
    assert seen is not None and seen[0].text == "what a callback wrote"
