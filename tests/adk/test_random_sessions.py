"""Random Workflows with questions, failures, callbacks and state against plain ADK.

``DEX_SESSION_SEEDS=1000:1500`` runs other seeds, also those of a failure.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence

import pytest

from dex_agents._contract import Json, RequestedToolCall, ToolCallRecord, ToolCallStatus
from dex_agents._effects import ToolEffect
from dex_agents_google_adk import AdkAgentRunner
from dex_agents_google_adk._adk_compat import INPUT_CALL
from support.adk_oracle import Driver, run_plain
from support.random_sessions import ANSWER, QUESTION, PlainWorld, SessionWorld, random_session
from support.random_trees import leaks_branch
from support.tree_oracle import compare_tree

pytestmark = pytest.mark.filterwarnings("ignore")
_LONGEST = 60


def _seeds(first: int, count: int) -> range:
    if chosen := os.environ.get("DEX_SESSION_SEEDS"):
        begin, end = chosen.split(":")
        return range(int(begin), int(end))
    return range(first, first + count)


def _answered(item: RequestedToolCall) -> ToolCallRecord | None:
    if item.tool_name != INPUT_CALL:
        return None
    return ToolCallRecord(item.call_id, INPUT_CALL, ToolCallStatus.SUCCEEDED, output=ANSWER)


def _is_question(event: Json) -> bool:
    """Plain ADK has the answer there at once."""
    path = event.get("node_info", {}).get("path", "")
    if path.rpartition("/")[2].startswith(QUESTION):
        return True
    parts = (event.get("content") or {}).get("parts") or []
    return any(part.get("function_response", {}).get("name") == INPUT_CALL for part in parts)


async def _play(driver: Driver, messages: Sequence[str]) -> None:
    for message in messages:
        await driver.turn(message)


async def _check(seed: int, *messages: str, repeats: int) -> None:
    plan = random_session(seed)
    world = PlainWorld(plan.scripts, cyclic=True)
    agents = random_session(seed)
    ours = SessionWorld(plan.scripts, cyclic=True)
    root = agents.build(ours)
    try:
        plain = await run_plain(plan.build, world, messages)
    except ValueError as error:
        # Two outputs of one node, or a model that stays away.
        runner = AdkAgentRunner(
            root, default_tool_effect=ToolEffect.READ, dynamic_agents=agents.dynamic
        )
        driver = Driver(runner, ours, execute=_answered, calls_per_step=20, limit=200)
        with pytest.raises(ValueError, match=f"^{re.escape(str(error))}$"):
            await _play(driver, messages)
        return
    if len(world.asked) > _LONGEST or leaks_branch(plan, plain.events):
        return
    try:
        await compare_tree(
            lambda _: root,
            plan.scripts,
            messages,
            any_order=True,
            plain=plain,
            plain_world=world,
            world=ours,
            repeats=repeats,
            execute=_answered,
            leave_out=_is_question,
            default_tool_effect=ToolEffect.READ,
            dynamic_agents=agents.dynamic,
        )
    except BaseException:
        print(f"seed {seed}: {json.dumps(plan.tree)}")
        raise


@pytest.mark.parametrize("seed", _seeds(0, 16))
async def test_random_session(seed: int) -> None:
    await _check(seed, "go", "again", repeats=1 + seed % 2)


@pytest.mark.long
@pytest.mark.parametrize("seed", _seeds(10_000, 500))
async def test_many_random_sessions(seed: int) -> None:
    await _check(seed, "go", "again", "more", repeats=1)
