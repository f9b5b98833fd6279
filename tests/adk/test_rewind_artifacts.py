"""State given at creation, and artifacts, follow a rewind and go along with a fork."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.artifacts.base_artifact_service import BaseArtifactService
from google.adk.artifacts.file_artifact_service import FileArtifactService
from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from adk.test_compaction import BULK, TURN_S, Summarizer
from adk.test_rewind import Turn, say
from dex_agents import AgentSessionFlow, CompactionPolicy, ToolEffect
from dex_agents.testing import private_engine
from dex_agents_google_adk import AdkAgentRunner, adk_agent_session_flow
from support.adk_oracle import call, run_plain, text
from support.serving import serve
from support.tree_oracle import TreeLlm, TreeWorld, canonical

STATE = {"tenant": "t1", "app:plan": "free", "limits": {"daily": [1, 2]}}
Services = Callable[[Path], BaseArtifactService]


async def save(name: str, content: str, tool_context: ToolContext) -> str:
    """Save."""
    version = await tool_context.save_artifact(name, types.Part(text=content))
    tool_context.state[f"saved_{content}"] = version
    return f"saved {content}"


async def save_and_yield(
    name: str, content: str, tool_context: ToolContext
) -> AsyncGenerator[str, None]:
    """Save, as a generator."""
    yield await save(name, content, tool_context)


async def load(name: str, tool_context: ToolContext) -> str:
    """Load."""
    part = await tool_context.load_artifact(name)
    return str(part.text) if part else "nothing"


async def names(tool_context: ToolContext) -> list[str]:
    """List."""
    return await tool_context.list_artifacts()


async def save_by_callback(callback_context: CallbackContext) -> None:
    """A child that saves before it runs."""
    await callback_context.save_artifact("by_child", types.Part(text="child was here"))


def build(world: Any) -> LlmAgent:
    """Its instructions show state and the current version of an artifact."""
    child = LlmAgent(
        name="sub",
        model=TreeLlm(world=world),
        description="sub",
        tools=[save, load],
        before_agent_callback=save_by_callback,
    )
    return LlmAgent(
        name="root",
        model=TreeLlm(world=world),
        instruction="{tenant} {app:plan?} {limits?} {saved_one?} {saved_two?} {artifact.report?}",
        tools=[save, save_and_yield, load, names],
        sub_agents=[child],
    )


def scripts_of(turns: Sequence[Turn]) -> dict[str, list[Any]]:
    return {
        agent: [step for _, answers in turns for step in answers.get(agent, ())]
        for agent in ("root", "sub")
    }


TURNS: Sequence[Turn] = (
    ("one", {"root": [[call("save", name="report", content="one")], text("saved")]}),
    (
        "two",
        {
            "root": [
                [call("save", name="report", content="two"), call("save", name="new", content="n")],
                [call("transfer_to_agent", agent_name="sub")],
            ],
            "sub": [[call("save", name="report", content="three")], text("child saved")],
        },
    ),
)
AFTER: Turn = (
    "after",
    {
        "root": [
            [call("load", name="report"), call("load", name="new"), call("names")],
            [call("save_and_yield", name="report", content="four")],
            [call("load", name="report")],
            text("done"),
        ]
    },
)


def flow_of(
    world: TreeWorld, service: BaseArtifactService, flow_type: str, **arguments: Any
) -> AgentSessionFlow:
    return adk_agent_session_flow(
        build(world),
        flow_type=flow_type,
        default_tool_effect=ToolEffect.READ,
        artifact_service=service,
        **arguments,
    )


def comparable(requests: Sequence[Any]) -> Any:
    """Without the version numbers, which a service counts on in place."""
    shown = canonical(list(requests))
    for request in shown:
        request["config"].pop("system_instruction")
    return shown


@pytest.mark.parametrize(
    "service_of",
    [lambda _: InMemoryArtifactService(), lambda folder: FileArtifactService(str(folder))],
    ids=["memory", "files"],
)
@pytest.mark.parametrize("how", ["rewind", "fork"])
async def test_state_and_artifacts_are_those_of_then(
    tmp_path: Path, service_of: Services, how: str
) -> None:
    world = TreeWorld(scripts_of([*TURNS, AFTER]))
    flow = flow_of(world, service_of(tmp_path / "artifacts"), f"Then{how}")
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await sessions.start_session("s", "one", state=STATE)
        await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        await say(sessions, "two")
        asked = len(world.asked)
        if how == "rewind":
            await sessions.rewind("s", "t2")
        else:
            await sessions.fork_session("s", "f", before_turn_id="t2")
        await say(sessions, "after", "s" if how == "rewind" else "f")
    plain = TreeWorld(scripts_of([TURNS[0], AFTER]))
    await run_plain(
        build,
        plain,
        ["one", "after"],
        artifact_service=service_of(tmp_path / "plain"),
        state=STATE,
    )
    ours = [request for _, request in world.asked[asked:]]
    theirs = [request for _, request in plain.asked[2:]]
    assert comparable(ours) == comparable(theirs)
    # The first request shows the versions of then, and the next ones what was saved since.
    instructions = [request["config"]["system_instruction"] for request in ours]
    assert instructions[0] == theirs[0]["config"]["system_instruction"]
    assert "one" in instructions[0]
    assert "two" not in instructions[0]
    assert "four" in instructions[-1]


async def test_a_fork_and_its_source_save_apart(tmp_path: Path) -> None:
    reads: Turn = ("read", {"root": [[call("load", name="report")], text("read")]})
    saves: Turn = ("save", {"root": [[call("save", name="report", content="five")], text("ok")]})
    world = TreeWorld(scripts_of([TURNS[0], saves, reads, reads]))
    service = InMemoryArtifactService()
    flow = flow_of(world, service, "Apart")
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await sessions.start_session("s", "one", state=STATE)
        await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        await sessions.fork_session("s", "f")
        await say(sessions, "save", "f")
        for session_id, content in (("s", "one"), ("f", "five")):
            await say(sessions, "read", session_id)
            messages = (await sessions.list_messages(session_id)).messages
            answers = [m.framework_item for m in messages if m.tool_name == "load"]
            part = answers[-1]["content"]["parts"][0]["function_response"]
            assert part["response"] == {"result": content}


async def test_artifacts_behind_a_summary_are_found(tmp_path: Path) -> None:
    bulk: Turn = (BULK, {"root": [text(BULK)]})
    reads: Turn = ("read", {"root": [[call("load", name="report")], text("read")]})
    later: Turn = ("save", {"root": [[call("save", name="report", content="late")], text("ok")]})
    world = TreeWorld(scripts_of([TURNS[0], *[bulk] * 8, later, reads, reads]))
    summaries = TreeWorld({})
    flow = flow_of(
        world,
        InMemoryArtifactService(),
        "Behind",
        compaction=CompactionPolicy(context_window_tokens=3_000, kept_turns=1),
        summary_model=Summarizer(world=summaries),
    )
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await sessions.start_session("s", "one", state=STATE)
        await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        for _ in range(8):
            await say(sessions, BULK)
        await say(sessions, "save")
        assert len(summaries.requests) >= 2
        await sessions.fork_session("s", "f", before_turn_id="t10")
        await sessions.rewind("s", "t10")
        for session_id in ("s", "f"):
            await say(sessions, "read", session_id)
            last = world.requests_of("root")[-1]
            assert "Summary of the conversation" in str(last["contents"][0])
            assert last["contents"][-1]["parts"][0]["function_response"]["response"] == {
                "result": "one"
            }
            assert "t1 free" in last["config"]["system_instruction"]


def test_a_state_of_one_invocation_is_refused() -> None:
    runner = AdkAgentRunner(build(TreeWorld({})), default_tool_effect=ToolEffect.READ)
    with pytest.raises(ValueError, match="'temp:x' is of one invocation only"):
        runner.build_state_message({"temp:x": 1})
