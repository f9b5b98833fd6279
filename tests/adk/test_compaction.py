"""Compaction: a long session stays within its window, and nothing that its events set is lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.tools.tool_context import ToolContext

from dex_agents import (
    AgentMessage,
    AgentSessionClient,
    AgentSessionFlow,
    CompactionPolicy,
    HistorySummary,
    ToolEffect,
)
from dex_agents.testing import private_engine, read_step_history, step_shape
from dex_agents_google_adk import adk_agent_session_flow
from support.adk_oracle import ScriptedLlm, call, request_json, text
from support.serving import serve
from support.tree_oracle import TreeLlm, TreeWorld

TURN_S = 40.0
BULK = "x" * 900  # 300 tokens


class Summarizer(ScriptedLlm):
    """Numbers its summaries, or fails."""

    fails: int = 0

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        self.world.requests.append(request_json(llm_request))
        if len(self.world.requests) <= self.fails:
            raise RuntimeError("no summary today")
        from support.adk_oracle import answer

        yield answer(text(f"summary {len(self.world.requests)}"))


def make(
    world: TreeWorld,
    summaries: TreeWorld,
    *,
    fails: int = 0,
    flow_type: str = "Long",
    **policy: Any,
) -> AgentSessionFlow:
    def note(x: str, tool_context: ToolContext) -> str:
        """Note."""
        tool_context.state["noted"] = x
        return "ok"

    sub = LlmAgent(name="sub", model=TreeLlm(world=world), description="sub")
    root = LlmAgent(
        name="root",
        model=TreeLlm(world=world),
        instruction="State: {noted?}",
        tools=[note],
        sub_agents=[sub],
    )
    return adk_agent_session_flow(
        root,
        flow_type=flow_type,
        default_tool_effect=ToolEffect.READ,
        compaction=CompactionPolicy(**{"context_window_tokens": 4_000, "kept_turns": 2} | policy),
        summary_model=Summarizer(world=summaries, fails=fails),
    )


async def talk(sessions: AgentSessionClient, texts: Sequence[str]) -> None:
    """One turn after the other."""
    await sessions.start_session("s", texts[0])
    for number, message in enumerate(texts[1:], start=1):
        await sessions.wait_for_turn("s", number, timeout_s=TURN_S)
        await sessions.send_user_message("s", message)
    await sessions.wait_for_turn("s", len(texts), timeout_s=TURN_S)


async def test_a_long_session_stays_within_its_window(tmp_path: Path) -> None:
    world = TreeWorld(
        {
            "root": [[call("note", x="first")], [call("transfer_to_agent", agent_name="sub")]],
            "sub": [text(f"answer {n} {BULK}") for n in range(40)],
        }
    )
    summaries = TreeWorld({})
    flow = make(world, summaries)
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await talk(sessions, [f"message {number} {BULK}" for number in range(25)])
        messages: list[AgentMessage] = []
        before: int | None = None
        while True:
            page = await sessions.list_messages("s", before_turn=before, turns=10)
            messages = [*page.messages, *messages]
            before = page.next_before_turn
            if before is None:
                break
        shape = step_shape(await read_step_history(engine.address, "s"))
        snapshot = await sessions.get_agent_snapshot("s")
    assert len(summaries.requests) >= 3
    assert shape.count("CompactHistory") == len(summaries.requests)
    sizes = [len(json.dumps(request["contents"])) for request in world.requests_of("sub")]
    assert max(sizes) < 4_000 * 3 * 1.5
    last = world.requests_of("sub")[-1]
    assert "summary" in last["contents"][0]["parts"][0]["text"]
    assert "[Dex] ADK session state" not in json.dumps(last)
    # The agent that replied last goes on, the state is kept, and no message is gone.
    assert len(world.requests_of("root")) == 2
    assert [m.text[:10].strip() for m in messages if m.role == "user"] == [
        f"message {n}"[:10].strip() for n in range(25)
    ]
    assert "summary" not in json.dumps([m.framework_item for m in messages])
    assert "first" in json.dumps(summaries.requests[0])
    assert f"summary {len(summaries.requests) - 1}" in json.dumps(summaries.requests[-1])
    assert snapshot.usage.model_calls == len(world.asked) + len(summaries.requests)


async def test_state_survives_the_summary(tmp_path: Path) -> None:
    world = TreeWorld(
        {
            "root": [
                [call("note", x="kept value")],
                text(BULK),
                *[text(f"{n} {BULK}") for n in range(20)],
            ]
        }
    )
    flow = make(world, TreeWorld({}), kept_turns=0)
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await talk(sessions, [BULK] * 12)
    last = world.requests_of("root")[-1]
    assert "State: kept value" in last["config"]["system_instruction"]
    assert len(last["contents"]) < 10


async def test_a_failing_summary_harms_no_turn(tmp_path: Path) -> None:
    world = TreeWorld({"root": [text(f"{n} {BULK}") for n in range(20)]})
    summaries = TreeWorld({})
    flow = make(world, summaries, fails=2)
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await sessions.start_session("s", BULK)
        for number in range(1, 8):
            snapshot = await sessions.wait_for_turn("s", number, timeout_s=TURN_S)
            assert snapshot.last_turn is not None and not snapshot.last_turn.error
            await sessions.send_user_message("s", BULK)
        await sessions.wait_for_turn("s", 8, timeout_s=TURN_S)
    assert len(summaries.requests) > 2
    assert "Summary of the conversation" in json.dumps(world.requests_of("root")[-1])


async def test_retention_deletes_behind_the_summary(tmp_path: Path) -> None:
    world = TreeWorld({"root": [text(f"{n} {BULK}") for n in range(20)]})
    flow = make(world, TreeWorld({}), retained_turns=1)
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await talk(sessions, [f"{number} {BULK}" for number in range(13)])
        page = await sessions.list_messages("s", turns=50)
    left = [int(m.text.split()[0]) for m in page.messages if m.role == "user"]
    assert left == list(range(left[0], 13))
    assert 0 < left[0] < 11


async def test_an_open_task_blocks_compaction(tmp_path: Path) -> None:
    world = TreeWorld(
        {
            "root": [[call("helper", request="do it")], text("done"), *[text(BULK)] * 3],
            "helper": [
                *[text(f"which one? {BULK}") for _ in range(7)],
                [call("finish_task", result="ok")],
            ],
        }
    )
    summaries = TreeWorld({})
    helper = LlmAgent(name="helper", model=TreeLlm(world=world), mode="task", description="helps")
    root = LlmAgent(name="root", model=TreeLlm(world=world), sub_agents=[helper])
    flow = adk_agent_session_flow(
        root,
        flow_type="Tasks",
        compaction=CompactionPolicy(3_000, kept_turns=1),
        summary_model=Summarizer(world=summaries),
    )
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await sessions.start_session("s", BULK)
        for number in range(1, 8):
            await sessions.wait_for_turn("s", number, timeout_s=TURN_S)
            assert not summaries.requests
            await sessions.send_user_message("s", BULK)
        await sessions.wait_for_turn("s", 8, timeout_s=TURN_S)
        await sessions.send_user_message("s", BULK)
        await sessions.wait_for_turn("s", 9, timeout_s=TURN_S)
        await sessions.send_user_message("s", BULK)
        await sessions.wait_for_turn("s", 10, timeout_s=TURN_S)
    assert summaries.requests


@pytest.mark.parametrize(
    "arguments,kind,message",
    [
        ({"context_window_tokens": 10}, ValueError, "at least 1000, got 10"),
        ({"context_window_tokens": "x"}, TypeError, "must be an int"),
        ({"context_window_tokens": 9_000, "trigger_ratio": 0}, ValueError, "above 0"),
        ({"context_window_tokens": 9_000, "trigger_ratio": True}, TypeError, "must be a number"),
        ({"context_window_tokens": 9_000, "kept_turns": -1}, ValueError, "at least 0"),
        (
            {"context_window_tokens": 9_000, "reserved_input_tokens": 7_200},
            ValueError,
            "must be below",
        ),
    ],
)
def test_wrong_policies_are_refused(arguments: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        CompactionPolicy(**arguments)


def test_what_looks_like_the_state_line_is_text() -> None:
    from dex_agents_google_adk._compaction import restore

    restored = restore(HistorySummary("said\n[Dex] ADK session state: no JSON"))
    content = restored.events[0].content
    assert content is not None and content.parts is not None
    assert "no JSON" in str(content.parts[0].text)
    assert restored.state == {}
