"""The parsed history that a process keeps is a cache only: with it, without it, all is the same."""

from __future__ import annotations

import asyncio
import gc
import itertools
import weakref
from typing import Any

import pytest
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.models.llm_request import LlmRequest
from google.adk.sessions.session import Session
from google.genai import types
from pydantic import BaseModel

from adk.test_oracle_basic import READ, build
from dex_agents import AgentMessage, MessageRole
from dex_agents_google_adk import AdkAgentRunner
from dex_agents_google_adk._events import dump_event, load_event
from dex_agents_google_adk._history import HistoryCache
from support.adk_oracle import Driver, ScriptedLlm, Step, World, call, compare, text

SCRIPT: list[Step] = [
    call("count", amount=1),
    [call("count", amount=2), call("weather", city="Rome")],
    text("a"),
    call("weather", city="Oslo"),
    text("b"),
    call("count", amount=5),
    text("c"),
    text("d"),
]


@pytest.mark.parametrize("maximum_bytes", [0, 1_500, 1 << 20], ids=["off", "too small", "on"])
async def test_the_oracle_with_and_without_it(
    maximum_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HistoryCache.__init__, "__defaults__", (maximum_bytes,))
    driver = await compare(build, SCRIPT, ["one", "two", "three", "four"], **READ)
    kept = driver.runner._setup.history.size
    assert kept <= maximum_bytes
    assert bool(kept) is bool(maximum_bytes)


async def stored_messages() -> list[AgentMessage]:
    driver = await compare(build, SCRIPT, ["one", "two", "three", "four"], **READ)
    return driver.history


async def test_it_is_bounded_by_bytes() -> None:
    messages = await stored_messages()
    cache = HistoryCache(2_000)
    for session in range(20):
        events = cache.load(f"s{session}", messages)
        assert 0 < cache.size <= 2_000
        assert [dump_event(e) for e in events] == [
            dump_event(load_event(m.framework_item)) for m in messages
        ]


async def test_what_a_request_shares_with_its_events_is_each_attempts_own() -> None:
    messages = await stored_messages()
    cache = HistoryCache()
    before = [dump_event(event) for event in cache.load("s", messages)]
    for event in cache.load("s", messages):
        if event.actions.state_delta:
            event.actions.state_delta["spoilt"] = True
        for part in (event.content.parts if event.content else None) or []:
            if part.function_call is not None and part.function_call.args is not None:
                part.function_call.args["spoilt"] = True
            if part.function_response is not None and part.function_response.response is not None:
                part.function_response.response["spoilt"] = True
    assert [dump_event(event) for event in cache.load("s", messages)] == before


async def test_another_item_in_the_same_place_counts() -> None:
    first, *_ = await stored_messages()
    cache = HistoryCache()
    (event,) = cache.load("s", [first])
    assert isinstance(first.framework_item, dict)
    item = {**first.framework_item, "author": "somebody"}
    other = AgentMessage(MessageRole.USER, item, "", sequence=first.sequence)
    (changed,) = cache.load("s", [other])
    assert (event.author, changed.author) == ("user", "somebody")


async def test_what_a_callback_edits_in_the_session_is_forgotten_with_the_attempt() -> None:
    messages = await stored_messages()
    cache = HistoryCache()
    before = [dump_event(event) for event in cache.load("s", messages)]
    for event in cache.load("s", messages):
        event.author = "somebody"
        if event.content is not None and event.content.parts is not None:
            event.content.role = "spoilt"
            event.content.parts[0].text = "spoilt"
            event.content.parts.append(event.content.parts[0])
    assert [dump_event(event) for event in cache.load("s", messages)] == before


def rich_event() -> Event:
    """An event with something that can change in every place that an event has for it."""
    return Event(
        id="e",
        invocation_id="i",
        author="root",
        timestamp=1.0,
        content=types.Content(
            role="model",
            parts=[
                types.Part(text="hello", thought_signature=b"x"),
                types.Part(inline_data=types.Blob(data=b"y", mime_type="image/png")),
                types.Part(
                    function_call=types.FunctionCall(id="c", name="f", args={"a": [{"b": [1]}]})
                ),
                types.Part(
                    function_response=types.FunctionResponse(
                        id="c",
                        name="f",
                        response={"a": {"b": []}},
                        parts=[
                            types.FunctionResponsePart(
                                inline_data=types.FunctionResponseBlob(data=b"z", mime_type="a/b")
                            )
                        ],
                    )
                ),
            ],
        ),
        actions=EventActions(state_delta={"k": {"l": [1]}}, artifact_delta={"file": 1}),
        long_running_tool_ids={"c"},
        custom_metadata={"m": [{}]},
        output={"o": [{"p": 1}]},
        usage_metadata=types.GenerateContentResponseUsageMetadata(prompt_token_count=1),
        grounding_metadata=types.GroundingMetadata(web_search_queries=["q"]),
    )


def changeable(value: Any) -> dict[int, Any]:
    """All that can change in place below ``value``, by identity."""
    if isinstance(value, BaseModel):
        below: list[Any] = [*value.__dict__.values(), value.__dict__, value.__pydantic_fields_set__]
        below += [value.__pydantic_extra__, value.__pydantic_private__]
    elif isinstance(value, dict):
        below = list(value.values())
    elif isinstance(value, (list, set)):
        below = list(value)
    else:
        return {}
    found = {id(value): value}
    for item in below:
        found |= changeable(item)
    return found


async def test_two_attempts_share_nothing_that_can_change() -> None:
    messages = await stored_messages()
    rich = AgentMessage(MessageRole.ASSISTANT, dump_event(rich_event()), "", sequence=1_000)
    unnumbered = AgentMessage(MessageRole.USER, rich.framework_item, "", sequence=-1)
    messages += [rich, unnumbered]
    cache = HistoryCache()
    loads = [cache.load("s", messages) for _ in range(3)]
    found = [changeable(events) for events in loads]
    stored = changeable([message.framework_item for message in messages])
    for here, there in itertools.combinations([*found, stored], 2):
        assert [here[key] for key in here.keys() & there.keys()] == []
    assert loads[0] == loads[1] == [load_event(m.framework_item) for m in messages]
    for events in loads:
        assert type(events) is list
        assert {type(event) for event in events} == {Event}
        assert [e.model_fields_set for e in events] == [
            load_event(m.framework_item).model_fields_set for m in messages
        ]


async def test_the_session_of_an_attempt_goes_with_it() -> None:
    seen: list[weakref.ref[Session]] = []

    def look(callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        seen.append(weakref.ref(callback_context.session))

    def tool() -> str:
        """Tool."""
        return "ok"

    world = World([call("tool"), text("a"), [call("tool"), call("tool")], text("b")])
    agent = LlmAgent(
        name="root", model=ScriptedLlm(world=world), tools=[tool], before_model_callback=look
    )
    driver = Driver(AdkAgentRunner(agent, **READ), world)
    gc.collect()
    gc.disable()  # what only the collector finds stays
    try:
        await driver.turn("one")
        await driver.turn("two")
        for _ in range(5):  # the loop still holds what it has just called
            await asyncio.sleep(0)
        assert len(seen) >= 4
        assert [ref() for ref in seen if ref() is not None] == []
    finally:
        gc.enable()
