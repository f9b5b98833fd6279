"""AdkAgentRunner does what plain ADK does."""

from __future__ import annotations

from typing import Any

from google.adk.agents.llm_agent import LlmAgent
from google.adk.tools.tool_context import ToolContext

from dex_agents._effects import ToolEffect
from support.adk_oracle import ScriptedLlm, Step, World, call, compare, text


def build(world: World, **fields: Any) -> LlmAgent:
    def weather(city: str) -> dict[str, str]:
        """The weather of a city."""
        world.ran("weather", city=city)
        return {"city": city, "weather": "sunny"}

    def count(amount: int, tool_context: ToolContext) -> str:
        """Count."""
        world.ran("count", amount=amount)
        tool_context.state["total"] = tool_context.state.get("total", 0) + amount
        return f"counted {amount}"

    return LlmAgent(
        name="root",
        model=ScriptedLlm(world=world),
        **{"instruction": "Be nice.", "tools": [weather, count]} | fields,
    )


READ: Any = {"default_tool_effect": ToolEffect.READ}


async def test_plain_text() -> None:
    driver = await compare(build, [text("hello")], **READ)
    assert [m.text for m in driver.history] == ["go", "hello"]
    assert driver.live.of("text_delta") == [
        {"type": "text_delta", "text": "hello", "agent_name": "root"}
    ]


async def test_one_tool() -> None:
    driver = await compare(build, [call("weather", city="Rome"), text("sunny in Rome")], **READ)
    assert len(driver.outcomes) == 2


async def test_parallel_tools() -> None:
    script: list[Step] = [[call("weather", city=c) for c in ("Rome", "Oslo", "Bonn")], text("done")]
    driver = await compare(build, script, **READ)
    assert [c.arguments["city"] for c in driver.requested] == ["Rome", "Oslo", "Bonn"]


async def test_many_rounds_and_turns() -> None:
    script: list[Step] = [
        call("count", amount=1),
        [call("count", amount=2), call("weather", city="Rome")],
        text("a"),
        text("b"),
        call("count", amount=5),
        text("c"),
    ]
    driver = await compare(build, script, ["one", "two", "three"], **READ)
    assert driver.state == {"total": 8}
