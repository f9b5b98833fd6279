"""How many calls of one response run at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from core.conftest import TURN_S, Stages
from core.scripted_runner import Call
from dex_agents import AgentSessionOptions, DeferredToolExecution, ToolEffect


@pytest.mark.parametrize("effect", [ToolEffect.READ, ToolEffect.NON_IDEMPOTENT_WRITE])
async def test_no_more_than_allowed_run_at_once(stages: Stages, effect: ToolEffect) -> None:
    running, most, ran = 0, 0, []

    async def work(call: DeferredToolExecution) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        ran.append(call.call_id)
        for _ in range(20):
            await asyncio.sleep(0)
        running -= 1
        if call.call_id == "c3" and effect is not ToolEffect.READ:
            raise LookupError("one fails")
        return call.call_id

    calls: list[Any] = [
        Call("work", effect, approval=False, call_id=f"c{number}") for number in range(10)
    ]
    options = AgentSessionOptions(max_parallel_calls=3)
    async with stages.play([calls, "done"], {"work": work}, options=options) as stage:
        await stage.sessions.start_session("s", "go")
        snapshot = await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        shape = await stage.shape("s")
    assert snapshot.last_turn is not None and snapshot.last_turn.final_text == "done"
    assert sorted(ran) == sorted(call.call_id for call in calls)
    assert most <= 3
    records = stage.runner.requests[1].records
    assert [record.call_id for record in records] == [f"c{number}" for number in range(10)]
    assert shape.count("ResumeTurn") == 1
