"""Agents with run loops of their own, against plain ADK."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from google.adk.agents.base_agent import BaseAgent

from dex_agents._effects import ToolEffect
from dex_agents._errors import AgentTurnError
from dex_agents_google_adk import AdkAgentRunner
from support.adk_oracle import Driver, run_plain
from support.custom_agents import Careless, Hiding, described
from support.custom_trees import TREES, A, B
from support.random_trees import make_llm
from support.tree_oracle import KindsWorld, Scripts, TreeWorld, compare_tree

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", TREES)
async def test_tree_equals_plain_adk(name: str) -> None:
    tree = TREES[name]
    plain_world, world = (KindsWorld(tree.scripts, cyclic=True) for _ in range(2))
    await compare_tree(
        tree.build,
        tree.scripts,
        tree.messages,
        plain=await run_plain(tree.build, plain_world, tree.messages),
        plain_world=plain_world,
        world=world,
        any_order=tree.any_order,
        resumable_agents=tree.resumable,
        default_tool_effect=ToolEffect.READ,
    )


SCRIPTS: Scripts = {"a": A, "b": B}


async def fails(root: BaseAgent, world: TreeWorld, error: str, dynamic: Sequence[Any] = ()) -> None:
    runner = AdkAgentRunner(root, default_tool_effect=ToolEffect.READ, dynamic_agents=dynamic)
    with pytest.raises(AgentTurnError, match=error):
        await Driver(runner, world).turn("go")


async def test_a_loop_that_does_not_stop_for_a_waiting_agent_fails_its_turn() -> None:
    world = KindsWorld(SCRIPTS)
    root = described(Careless, "root", make_llm(world, "a"), make_llm(world, "b"))
    await fails(root, world, "without the results of 'ask_a', 'read_a'.*of its own .here 'root'")
    # Nothing of b ran, and nothing of a ran twice.
    assert world.cursors == {"a": 1}
    assert len(world.executed) == 2


async def test_an_agent_that_is_no_sub_agent_does_not_run() -> None:
    world = KindsWorld(SCRIPTS)
    root = Hiding(name="root", hidden=make_llm(world, "a"))
    await fails(root, world, "'a' stands nowhere in the tree")
    assert (world.cursors, world.callbacks) == ({}, [])


async def test_a_loop_that_begins_again_after_a_pause_fails_its_turn() -> None:
    world = KindsWorld(SCRIPTS)
    root = Hiding(name="root", hidden=make_llm(world, "a"))
    await fails(root, world, "of its own .here 'root'", [root.hidden])
    assert world.cursors == {"a": 1}
