"""Random agent trees and Workflows against plain ADK.

``DEX_TREE_SEEDS=1000:1500`` runs other seeds, also those of a failure.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import pytest

from dex_agents._effects import ToolEffect
from support.adk_oracle import run_plain
from support.random_graphs import random_graph
from support.random_nodes import random_chat_nodes, random_composite_nodes
from support.random_trees import (
    Plan,
    leaks_branch,
    random_delegations,
    random_tree,
    random_workflow,
)
from support.tree_oracle import TreeWorld, compare_tree

pytestmark = pytest.mark.filterwarnings("ignore")
_LONGEST = 60


def _seeds(first: int, count: int) -> range:
    chosen = os.environ.get("DEX_TREE_SEEDS")
    if chosen:
        begin, end = chosen.split(":")
        return range(int(begin), int(end))
    return range(first, first + count)


async def _check(seed: int, make: Callable[[int], Plan], *messages: str, repeats: int) -> None:
    plan = make(seed)
    world = TreeWorld(plan.scripts, cyclic=True)
    plain = await run_plain(plan.build, world, messages)
    if len(world.asked) > _LONGEST or leaks_branch(plan, plain.events):
        return
    agents = make(seed)
    ours = TreeWorld(plan.scripts, cyclic=True)
    root = agents.build(ours)
    try:
        await compare_tree(
            lambda _: root,
            plan.scripts,
            messages,
            any_order=plan.any_order,
            plain=plain,
            plain_world=world,
            world=ours,
            repeats=repeats,
            default_tool_effect=ToolEffect.READ,
            dynamic_agents=agents.dynamic,
        )
    except BaseException:
        print(f"seed {seed}: {json.dumps(plan.tree)}")
        raise


@pytest.mark.parametrize("seed", _seeds(0, 30))
async def test_random_tree(seed: int) -> None:
    await _check(seed, random_tree, "go", "again", repeats=1 + seed % 2)


@pytest.mark.parametrize("seed", _seeds(0, 20))
async def test_random_workflow(seed: int) -> None:
    await _check(seed, random_workflow, "go", "again", repeats=1 + seed % 2)


@pytest.mark.parametrize("seed", _seeds(0, 20))
async def test_random_graph(seed: int) -> None:
    await _check(seed, random_graph, "go", "again", repeats=1 + seed % 2)


@pytest.mark.parametrize("seed", _seeds(0, 24))
async def test_random_chat_nodes(seed: int) -> None:
    await _check(seed, random_chat_nodes, "go", "again", repeats=1 + seed % 2)


@pytest.mark.parametrize("seed", _seeds(0, 10))
async def test_random_composite_nodes(seed: int) -> None:
    await _check(seed, random_composite_nodes, "go", "again", repeats=1 + seed % 2)


@pytest.mark.parametrize("seed", _seeds(0, 20))
async def test_random_delegations(seed: int) -> None:
    await _check(seed, random_delegations, "go", "again", repeats=1 + seed % 2)


@pytest.mark.long
@pytest.mark.parametrize("seed", _seeds(20_000, 300))
async def test_many_random_delegations(seed: int) -> None:
    await _check(seed, random_delegations, "go", "again", repeats=1)


@pytest.mark.long
@pytest.mark.parametrize("seed", _seeds(10_000, 300))
async def test_many_random_chat_nodes(seed: int) -> None:
    await _check(seed, random_chat_nodes, "go", "again", "more", repeats=1)


@pytest.mark.long
@pytest.mark.parametrize("seed", _seeds(10_000, 300))
async def test_many_random_composite_nodes(seed: int) -> None:
    await _check(seed, random_composite_nodes, "go", "again", "more", repeats=1)


@pytest.mark.long
@pytest.mark.parametrize("seed", _seeds(10_000, 1_500))
async def test_many_random_trees(seed: int) -> None:
    await _check(seed, random_tree, "go", "again", repeats=1)


@pytest.mark.long
@pytest.mark.parametrize("seed", _seeds(10_000, 500))
async def test_many_random_workflows(seed: int) -> None:
    await _check(seed, random_workflow, "go", "again", "more", repeats=1)


@pytest.mark.long
@pytest.mark.parametrize("seed", _seeds(10_000, 500))
async def test_many_random_graphs(seed: int) -> None:
    await _check(seed, random_graph, "go", "again", "more", repeats=1)
