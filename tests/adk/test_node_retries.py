"""A node with a ``RetryConfig`` whose attempts all fail is given up when plain ADK gives it up."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.workflow import RetryConfig, node

from dex_agents._effects import ToolEffect
from dex_agents_google_adk import AdkAgentRunner
from support.adk_oracle import Driver, call, run_plain
from support.graph_cases import workflow
from support.tree_cases import llm
from support.tree_oracle import TreeWorld

pytestmark = pytest.mark.filterwarnings("ignore")


def build(world: TreeWorld) -> Any:
    agent = llm(world, "w1", "t1")
    return workflow(
        ("START", node(agent, retry_config=RetryConfig(max_attempts=3, initial_delay=0.001)))
    )


async def test_a_node_that_fails_in_every_attempt_is_given_up() -> None:
    script = [[call("t1", x="1")], *[ValueError("away")] * 9]
    plain = TreeWorld({"w1": script})
    with pytest.raises(ValueError, match="away"):
        await run_plain(build, plain, ("go",))
    world = TreeWorld({"w1": script})
    driver = Driver(AdkAgentRunner(build(world), default_tool_effect=ToolEffect.READ), world)
    with pytest.raises(Exception, match="away"):
        await driver.turn("go")
    assert len(world.asked) == len(plain.asked) == 4
    assert world.executed == plain.executed
