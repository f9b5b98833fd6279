"""Going back: the next model request is that of plain ADK after only the turns that are left."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.tools.tool_context import ToolContext

from adk.test_compaction import BULK, TURN_S, make, talk
from dex_agents import AgentSessionClient, AgentSessionFlow, ToolEffect, TurnTargetError
from dex_agents.testing import private_engine
from dex_agents_google_adk import adk_agent_session_flow
from support.adk_oracle import call, run_plain, text
from support.serving import serve
from support.tree_oracle import TreeLlm, TreeWorld, canonical

Turn = tuple[str, Mapping[str, Sequence[Any]]]
"""What the user says, and what each agent's model answers in that turn."""


def build(world: Any) -> LlmAgent:
    """A root with state and a sub-agent that keeps the talk."""

    def note(x: str, tool_context: ToolContext) -> str:
        """Note."""
        tool_context.state["noted"] = x
        tool_context.state[f"key_{x}"] = x
        return f"noted {x}"

    sub = LlmAgent(
        name="sub",
        model=TreeLlm(world=world),
        description="sub",
        instruction="Sub: {noted?}",
        tools=[note],
    )
    return LlmAgent(
        name="root",
        model=TreeLlm(world=world),
        instruction="Root: {noted?} {key_b?}",
        tools=[note],
        sub_agents=[sub],
    )


def scripts_of(turns: Sequence[Turn]) -> dict[str, list[Any]]:
    return {
        agent: [step for _, answers in turns for step in answers.get(agent, ())]
        for agent in ("root", "sub")
    }


async def assert_like_plain(world: TreeWorld, kept: Sequence[Turn]) -> None:
    """The newest request is the one that plain ADK makes after the kept turns."""
    plain = TreeWorld(scripts_of(kept))
    await run_plain(build, plain, [message for message, _ in kept])
    assert canonical(list(world.asked[-1])) == canonical(list(plain.asked[-1]))


def flow_of(world: TreeWorld, flow_type: str = "Rewound") -> AgentSessionFlow:
    return adk_agent_session_flow(
        build(world), flow_type=flow_type, default_tool_effect=ToolEffect.READ
    )


async def say(sessions: AgentSessionClient, message: str, session_id: str = "s") -> None:
    done = (await sessions.get_agent_snapshot(session_id)).turns_done
    await sessions.send_user_message(session_id, message)
    snapshot = await sessions.wait_for_turn(session_id, done + 1, timeout_s=TURN_S)
    assert snapshot.last_turn is not None
    assert not snapshot.last_turn.error


TURNS: Sequence[Turn] = (
    ("one", {"root": [[call("note", x="a")], text("noted a")]}),
    ("two", {"root": [text("just talk")]}),
    ("three", {"root": [[call("note", x="b"), call("note", x="c")], text("noted b and c")]}),
    ("four", {"root": [[call("transfer_to_agent", agent_name="sub")]], "sub": [text("sub here")]}),
    ("five", {"sub": [[call("note", x="d")], text("sub noted d")]}),
    ("six", {"sub": [[call("transfer_to_agent", agent_name="root")]], "root": [text("root here")]}),
)


@pytest.mark.parametrize("target", [2, 3, 4, 5, 6])
async def test_the_next_request_is_plain_adks_after_the_kept_turns(
    tmp_path: Path, target: int
) -> None:
    kept = TURNS[: target - 1]
    agent = "sub" if 4 <= len(kept) < 6 else "root"
    after: Turn = ("after", {agent: [text("going on")]})
    world = TreeWorld(scripts_of([*TURNS, after]))
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow_of(world), tmp_path) as sessions,
    ):
        await talk(sessions, [message for message, _ in TURNS])
        await sessions.rewind("s", f"t{target}")
        await say(sessions, "after")
        await assert_like_plain(world, [*kept, after])
        page = await sessions.list_messages("s")
    said = [message.text for message in page.messages if message.role == "user"]
    assert said == [message for message, _ in (*kept, after)]


async def test_rewinds_behind_summaries_read_the_summary_of_then(tmp_path: Path) -> None:
    world = TreeWorld({"root": [text(f"answer {n} {BULK}") for n in range(60)]})
    summaries = TreeWorld({})
    flow = make(world, summaries, flow_type="RewoundLong")
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await talk(sessions, [f"message 1 {BULK}"])
        for number in range(2, 16):
            await say(sessions, f"message {number} {BULK}")
        assert len(summaries.requests) >= 3
        made = len(summaries.requests)
        for target in ("t13", "t8", "t6", "t3"):
            number = int(target[1:])
            await sessions.rewind("s", target)
            await say(sessions, f"message {number} {BULK}")
            contents = world.requests_of("root")[-1]["contents"]
            texts = [part["text"] for content in contents for part in content["parts"]]
            assert texts[-1] == f"message {number} {BULK}"
            # Each turn before is read as it is or in a summary; of what was removed neither.
            known = [line for line in texts if line.startswith("Summary of the conversation")]
            covered = summaries.requests[: int(known[0].rsplit(" ", 1)[1])] if known else []
            told = json.dumps([texts[:-1], covered])
            there = [turn for turn in range(1, 16) if f"message {turn} " in told]
            assert there == list(range(1, number))
            assert known or number == 3
            # Back to one line of turns for the next round.
            snapshot = await sessions.get_agent_snapshot("s")
            await sessions.rewind("s", f"t{snapshot.turns_done}")
        assert len(summaries.requests) == made
        # It goes on and compacts again, across the gaps.
        for number in range(3, 14):
            await say(sessions, f"again {number} {BULK}")
        assert len(summaries.requests) > made
        assert "message 3 " not in json.dumps(summaries.requests[-1])
        page = await sessions.list_messages("s", turns=100)
    said = [message.text.split(" x")[0] for message in page.messages if message.role == "user"]
    assert said == ["message 1", "message 2", *(f"again {n}" for n in range(3, 14))]


async def test_a_turn_whose_history_is_gone_is_no_target(tmp_path: Path) -> None:
    world = TreeWorld({"root": [text(f"answer {n} {BULK}") for n in range(60)]})
    summaries = TreeWorld({})
    flow = make(world, summaries, flow_type="RewoundShort", retained_turns=1)
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await talk(sessions, [f"message {number} {BULK}" for number in range(1, 14)])
        page = await sessions.list_messages("s", turns=100)
        first = int(page.messages[0].turn_id[1:])
        assert first > 3
        with pytest.raises(TurnTargetError, match=r"no longer kept, see .*retained_turns"):
            await sessions.rewind("s", f"t{first - 1}")
        snapshot = await sessions.get_agent_snapshot("s")
        assert snapshot.removed_turns == ()
        await sessions.rewind("s", "t13")
        await say(sessions, f"message 14 {BULK}")
        assert "message 13 " not in json.dumps(world.requests_of("root")[-1])
        assert "message 12 " in json.dumps(world.requests_of("root")[-1])


def with_task(world: Any) -> LlmAgent:
    """A root that hands a task to an agent, which talks to the user for several turns."""
    helper = LlmAgent(name="sub", model=TreeLlm(world=world), mode="task", description="helps")
    return LlmAgent(name="root", model=TreeLlm(world=world), sub_agents=[helper])


TASK_TURNS: Sequence[Turn] = (
    ("one", {"root": [text("hello")]}),
    ("two", {"root": [[call("sub", request="do it")]], "sub": [text("which one?")]}),
    ("three", {"sub": [text("and which size?")]}),
    ("four", {"sub": [[call("finish_task", result="ok")]], "root": [text("all done")]}),
)


@pytest.mark.parametrize("target", [2, 3, 4])
@pytest.mark.parametrize("how", ["rewind", "fork"])
async def test_a_task_that_was_open_then_is_open_again(
    tmp_path: Path, how: str, target: int
) -> None:
    kept = TASK_TURNS[: target - 1]
    after: Turn = ("after", {"root" if target == 2 else "sub": [text("going on")]})
    world = TreeWorld(scripts_of([*TASK_TURNS, after]))
    flow = adk_agent_session_flow(with_task(world), flow_type=f"Task{how}")
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await talk(sessions, [message for message, _ in TASK_TURNS])
        if how == "rewind":
            await sessions.rewind("s", f"t{target}")
        else:
            await sessions.fork_session("s", "f", before_turn_id=f"t{target}")
        await say(sessions, "after", "s" if how == "rewind" else "f")
    plain = TreeWorld(scripts_of([*kept, after]))
    await run_plain(with_task, plain, [message for message, _ in (*kept, after)])
    assert canonical(list(world.asked[-1])) == canonical(list(plain.asked[-1]))
