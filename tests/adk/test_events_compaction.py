"""ADK's own compaction runs as in plain ADK, each summary in a RunModel of its own."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps.app import App, EventsCompactionConfig
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.workflow import Workflow
from google.genai import types

from dex_agents import CompactionPolicy, ToolEffect
from dex_agents._contract import ContinueTurn, MessageRole, TurnCompleted
from dex_agents_google_adk import adk_agent_session_flow
from support.adk_oracle import ScriptedLlm, Step, World, answer, call, compare, text

READ: Any = {"default_tool_effect": ToolEffect.READ}


def app_with(world: World, *tools: Any, **config: Any) -> App:
    root = LlmAgent(name="root", model=ScriptedLlm(world=world), tools=list(tools))
    return App(
        name="shop", root_agent=root, events_compaction_config=EventsCompactionConfig(**config)
    )


def summary_events(items: list[Any]) -> list[Any]:
    return [item for item in items if item["actions"].get("compaction")]


async def test_a_window_of_turns_is_summed_up_behind_the_turn() -> None:
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
    # The answer is stored before the summary is asked for, and is the turn's answer.
    kinds = [type(outcome) for outcome in driver.outcomes]
    assert kinds[:3] == [TurnCompleted, ContinueTurn, TurnCompleted]
    assert driver.outcomes[2].final_text == "b" * 400  # type: ignore[union-attr]
    shown = [message for message in driver.history if message.role is MessageRole.USER]
    assert [message.text for message in shown] == ["1", "2", "3", "4", "5"]


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
        return app_with(world, compaction_interval=1, overlap_size=0)

    script: list[Step] = [text("a" * 400), RuntimeError("no summary today"), text("b"), text("S")]
    driver = await compare(build, script, ["1", "2"], **READ)
    assert len(summary_events([message.framework_item for message in driver.history])) == 1


def test_two_ways_to_compact_one_history_are_refused() -> None:
    app = app_with(World([]), compaction_interval=2, overlap_size=1)
    policy = CompactionPolicy(context_window_tokens=100_000)
    with pytest.raises(ValueError, match=r"'shop' has an events_compaction_config.*one of the two"):
        adk_agent_session_flow(app, flow_type="Shop", compaction=policy)


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
