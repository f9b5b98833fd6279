"""ADK's own compaction runs as in plain ADK, each summary in a RunModel of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps.app import App, EventsCompactionConfig
from google.adk.apps.base_events_summarizer import BaseEventsSummarizer
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.events.event import Event
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import Workflow
from google.genai import types

from dex_agents import AgentSessionFlow, CompactionPolicy, ToolEffect
from dex_agents._contract import ContinueTurn, MessageRole, TurnCompleted
from dex_agents.testing import private_engine
from dex_agents_google_adk import AdkAgentRunner, adk_agent_session_flow
from support.adk_oracle import (
    Driver,
    ScriptedLlm,
    Step,
    World,
    answer,
    call,
    compare,
    text,
)
from support.serving import serve

READ: Any = {"default_tool_effect": ToolEffect.READ}


def app_with(world: World, *tools: Any, **config: Any) -> App:
    root = LlmAgent(name="root", model=ScriptedLlm(world=world), tools=list(tools))
    return App(
        name="shop", root_agent=root, events_compaction_config=EventsCompactionConfig(**config)
    )


def summary_events(items: list[Any]) -> list[Any]:
    return [item for item in items if item["actions"].get("compaction")]


async def test_a_window_of_turns_is_summed_up_before_the_next_one() -> None:
    def build(world: World) -> App:
        return app_with(world, compaction_interval=2, overlap_size=1)

    script: list[Step] = [
        text("a" * 400),
        text("b" * 400),
        text("SUMMARY 1"),
        text("c" * 400),
        text("d" * 400),
        text("SUMMARY 2"),
        text("e"),
    ]
    driver = await compare(build, script, ["1", "2", "3", "4", "5"], **READ)
    items = [message.framework_item for message in driver.history]
    assert len(summary_events(items)) == 2
    assert "SUMMARY 2" in str(driver.world.requests[-1]["contents"])
    assert "aaa" not in str(driver.world.requests[-1]["contents"])
    # Each answer ends its turn; a summary is a model call of its own, when the next turn begins.
    kinds = [type(outcome) for outcome in driver.outcomes]
    assert kinds == [
        TurnCompleted,
        TurnCompleted,
        ContinueTurn,
        TurnCompleted,
        TurnCompleted,
        ContinueTurn,
        TurnCompleted,
    ]
    shown = [message for message in driver.history if message.role is MessageRole.USER]
    assert [message.text for message in shown] == ["1", "2", "3", "4", "5"]


async def test_a_turn_with_tools_begins_with_a_summary() -> None:
    def build(world: World) -> App:
        def look(x: str, tool_context: ToolContext) -> str:
            """Look."""
            world.ran("look", x=x)
            tool_context.state["seen"] = x
            said = tool_context.user_content
            return f"{x} for {said.parts[0].text if said and said.parts else None}"

        return app_with(world, look, compaction_interval=2, overlap_size=0)

    script: list[Step] = [
        text("a" * 400),
        text("b" * 400),
        text("SUMMARY"),
        call("look", x="1"),
        call("look", x="2"),
        text("c"),
    ]
    driver = await compare(build, script, ["1", "2", "third"], **READ)
    assert "1 for third" in str(driver.world.requests)


async def test_a_threshold_of_tokens_sums_up_before_the_model_call() -> None:
    usage = types.GenerateContentResponseUsageMetadata(
        prompt_token_count=5000, candidates_token_count=2
    )

    def build(world: World) -> App:
        def look(x: str) -> str:
            """Look."""
            world.ran("look", x=x)
            return x * 300

        return app_with(world, look, token_threshold=1000, event_retention_size=2)

    script: list[Step] = [
        [answer(text("first" * 100), usage_metadata=usage)],
        text("SUMMARY 1"),
        [answer(call("look", x="y"), usage_metadata=usage)],
        text("SUMMARY 2"),
        text("seen"),
        text("third"),
    ]
    await compare(build, script, ["one " * 200, "two " * 200, "three"], **READ)


async def test_a_failing_summary_harms_no_turn() -> None:
    def build(world: World) -> App:
        return app_with(world, compaction_interval=2, overlap_size=0)

    script: list[Step] = [
        text("a" * 400),
        text("b" * 400),
        RuntimeError("no summary today"),
        text("c" * 400),
        text("SUMMARY"),
        text("d"),
    ]
    driver = await compare(build, script, ["1", "2", "3", "4"], **READ)
    assert len(summary_events([message.framework_item for message in driver.history])) == 1


class OddSummarizer(BaseEventsSummarizer):
    """Does what no summarizer should."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._act = act

    async def maybe_summarize_events(self, *, events: list[Event]) -> Any:
        return self._act()


def _raise(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize(
    "act",
    [
        lambda: _raise(SystemExit(3)),
        lambda: _raise(asyncio.CancelledError()),
        lambda: _raise(ValueError("odd")),
        lambda: "no event",
        lambda: Event(author="user"),
    ],
    ids=["exit", "cancelled", "raised", "text", "another event"],
)
async def test_odd_summarizers_harm_no_turn(act: Callable[[], Any]) -> None:
    world = World([text("a" * 400), text("b")])
    app = app_with(world, compaction_interval=1, overlap_size=0, summarizer=OddSummarizer(act))
    driver = Driver(AdkAgentRunner(app, **READ), world)
    assert (await driver.turn("1")).final_text == "a" * 400
    assert (await driver.turn("2")).final_text == "b"
    assert [message.text for message in driver.history] == ["1", "a" * 400, "2", "b"]


async def test_a_summary_that_hangs_can_be_cancelled_and_costs_no_answer(tmp_path: Path) -> None:
    world = World([text("THE ANSWER" * 40), text("later")])
    hangs = asyncio.Event()

    class Hanging(BaseEventsSummarizer):
        async def maybe_summarize_events(self, *, events: list[Event]) -> Any:
            if not hangs.is_set():
                hangs.set()
                await asyncio.Event().wait()

    app = app_with(world, compaction_interval=1, overlap_size=0, summarizer=Hanging())
    flow = adk_agent_session_flow(app, flow_type="Hanging")
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await sessions.start_session("s", "hello")
        snapshot = await sessions.wait_for_turn("s", 1, timeout_s=40)
        assert snapshot.last_turn is not None
        assert snapshot.last_turn.final_text == "THE ANSWER" * 40
        await sessions.send_user_message("s", "second")
        await hangs.wait()
        assert await sessions.cancel_turn("s")
        await sessions.wait_for_turn("s", 2, timeout_s=40)
        await sessions.send_user_message("s", "third")
        snapshot = await sessions.wait_for_turn("s", 3, timeout_s=40)
        assert snapshot.last_turn is not None
        assert snapshot.last_turn.final_text == "later"


def test_two_ways_to_compact_one_history_are_refused() -> None:
    app = app_with(World([]), compaction_interval=2, overlap_size=1)
    policy = CompactionPolicy(context_window_tokens=100_000)
    refusal = r"'shop' has an events_compaction_config.*one of the two"
    with pytest.raises(ValueError, match=refusal):
        adk_agent_session_flow(app, flow_type="Shop", compaction=policy)
    runner = AdkAgentRunner(app)
    with pytest.raises(ValueError, match=refusal):
        AgentSessionFlow(runner, flow_type="Shop", compaction=policy)
    AgentSessionFlow(runner, flow_type="Shop")


def test_a_configuration_without_a_model_is_refused() -> None:
    def node(node_input: Any) -> str:
        """A node."""
        return "x"

    root = Workflow(name="flow", edges=[("START", node)])
    config = EventsCompactionConfig(compaction_interval=2, overlap_size=1)
    app = App(name="shop", root_agent=root, events_compaction_config=config)
    with pytest.raises(ValueError, match="give the configuration a summarizer"):
        adk_agent_session_flow(app, flow_type="Shop")
    config.summarizer = LlmEventSummarizer(llm=ScriptedLlm(world=World([])))
    adk_agent_session_flow(app, flow_type="Shop")
