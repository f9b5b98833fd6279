"""The parsed history that a process keeps is a cache only: with it, without it, all is the same."""

from __future__ import annotations

import pytest

from adk.test_oracle_basic import READ, build
from dex_agents import AgentMessage, MessageRole
from dex_agents_google_adk._events import dump_event, load_event
from dex_agents_google_adk._history import HistoryCache
from support.adk_oracle import Step, call, compare, text

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
