"""What the driver relies on in ADK. A failure here says that ADK changed and the driver must follow."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.platform import uuid as adk_uuid
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.genai import types
from pydantic import Field

pytestmark = pytest.mark.filterwarnings("ignore:.*EXPERIMENTAL.*:UserWarning")


class Model(BaseLlm):
    model: str = "canary"
    answers: list[Any] = Field(default_factory=list)
    requests: int = 0

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        self.requests += 1
        part = self.answers.pop(0)
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def call(name: str) -> types.Part:
    return types.Part(function_call=types.FunctionCall(name=name, args={}))


def say(text: str) -> types.Part:
    return types.Part(text=text)


async def run(
    agent: LlmAgent, *plugins: BasePlugin, events: list[Event] | None = None, **start: Any
) -> list[Event]:
    sessions = InMemorySessionService()
    session = await sessions.create_session(app_name="app", user_id="u", session_id="s")
    for event in events or []:
        await sessions.append_event(session, event)
    app = App(
        name="app",
        root_agent=agent,
        plugins=list(plugins),
        resumability_config=ResumabilityConfig(is_resumable=True),
    )
    if not start:
        start = {"new_message": types.Content(role="user", parts=[say("go")])}
    runner = Runner(app=app, session_service=sessions)
    return [event async for event in runner.run_async(user_id="u", session_id="s", **start)]


def paused(name: str) -> list[Event]:
    user = Event(
        author="user", invocation_id="i", content=types.Content(role="user", parts=[say("go")])
    )
    made = call(name)
    assert made.function_call is not None
    made.function_call.id = "c1"
    content = types.Content(role="model", parts=[made])
    return [user, Event(author="root", invocation_id="i", content=content)]


async def test_a_trailing_call_is_replayed_and_answered_by_a_plugin() -> None:
    class Answers(BasePlugin):
        async def before_tool_callback(self, **_: Any) -> dict[str, Any]:
            return {"stored": True}

    def tool() -> str:
        """Tool."""
        raise AssertionError("the tool ran")

    agent = LlmAgent(name="root", model=Model(answers=[say("done")]), tools=[tool])
    events = await run(agent, Answers("answers"), events=paused("tool"), invocation_id="i")
    assert events[0].get_function_responses()[0].response == {"stored": True}
    assert events[1].content is not None


async def test_end_invocation_in_a_tool_callback_skips_after_agent() -> None:
    called: list[str] = []

    class PutsOff(BasePlugin):
        async def before_tool_callback(self, *, tool_context: Any, **_: Any) -> dict[str, Any]:
            tool_context.request_confirmation(hint="h")
            tool_context.actions.skip_summarization = True
            tool_context._invocation_context.end_invocation = True
            return {}

    def tool() -> str:
        """Tool."""
        return "ran"

    model = Model(answers=[call("tool")])
    agent = LlmAgent(
        name="root",
        model=model,
        tools=[tool],
        after_agent_callback=lambda callback_context: called.append("after"),
    )
    events = await run(agent, PutsOff("puts_off"))
    assert not called
    names = [c.name for e in events for c in e.get_function_calls()]
    assert names == ["tool", "adk_request_confirmation"]


async def test_a_false_value_stops_plugins_but_not_the_agent() -> None:
    called: list[str] = []

    class First(BasePlugin):
        async def before_agent_callback(self, **_: Any) -> Any:
            return ""

    class Second(BasePlugin):
        async def before_agent_callback(self, **_: Any) -> None:
            called.append("plugin")

    agent = LlmAgent(
        name="root",
        model=Model(answers=[say("done")]),
        before_agent_callback=lambda callback_context: called.append("agent"),
    )
    await run(agent, First("first"), Second("second"))
    assert called == ["agent"]


async def test_an_event_that_a_plugin_returns_is_hidden_from_later_plugins() -> None:
    called: list[str] = []

    class First(BasePlugin):
        async def on_event_callback(self, *, event: Event, **_: Any) -> Event:
            return event

    class Second(BasePlugin):
        async def on_event_callback(self, **_: Any) -> None:
            called.append("seen")

    events = await run(
        LlmAgent(name="root", model=Model(answers=[say("done")])), First("a"), Second("b")
    )
    assert events
    assert not called


async def test_changes_to_call_ids_in_on_event_reach_the_execution() -> None:
    seen: list[str | None] = []

    class Renames(BasePlugin):
        async def on_event_callback(self, *, event: Event, **_: Any) -> None:
            for made in event.get_function_calls():
                made.id = "renamed"

        async def before_tool_callback(self, *, tool_context: Any, **_: Any) -> dict[str, Any]:
            seen.append(tool_context.function_call_id)
            return {}

    def tool() -> str:
        """Tool."""
        return "ran"

    await run(
        LlmAgent(name="root", model=Model(answers=[call("tool"), say("x")]), tools=[tool]),
        Renames("r"),
    )
    assert seen == ["renamed"]


async def test_ids_come_from_the_provider() -> None:
    numbers = iter(range(1000))
    adk_uuid.set_id_provider(lambda: f"id-{next(numbers)}")
    try:
        events = await run(LlmAgent(name="root", model=Model(answers=[say("done")])))
    finally:
        adk_uuid.reset_id_provider()
    assert all(event.id.startswith("id-") for event in events)
    assert events[0].invocation_id.startswith("e-id-")
