"""``rewind_async`` with ADK's names: a new session, and the given one as it was."""

from __future__ import annotations

import inspect
import typing
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.runners import Runner
from google.adk.tools.tool_context import ToolContext

from adk.test_compaction import TURN_S, talk
from adk.test_rewind import build, say
from dex_agents import (
    AgentSessionClient,
    AgentSessionFlow,
    InvalidInputError,
    SessionAlreadyExistsError,
    SessionNotFoundError,
    ToolEffect,
    TurnTargetError,
)
from dex_agents.testing import private_engine
from dex_agents_google_adk import AdkSessionRunner, SessionFork, adk_agent_session_flow
from support.adk_oracle import call, run_plain, text
from support.serving import serve
from support.tree_oracle import TreeLlm, TreeWorld, canonical


def three_pauses(world: Any) -> LlmAgent:
    """One turn of it makes three calls, each of which waits for its Step."""

    def note(x: str, tool_context: ToolContext) -> str:
        """Note."""
        tool_context.state["noted"] = x
        return f"noted {x} in {tool_context.invocation_id}"

    return LlmAgent(
        name="root",
        model=TreeLlm(world=world),
        instruction="Noted: {noted?}",
        tools=[note],
    )


def script() -> dict[str, list[Any]]:
    """Of three turns; the second has three pauses."""
    return {
        "root": [
            [call("note", x="a")],
            text("noted a"),
            *[[call("note", x=x)] for x in "bcd"],
            text("noted them"),
            text("third"),
            text("instead"),
        ]
    }


def flow_of(world: TreeWorld, flow_type: str) -> AgentSessionFlow:
    return adk_agent_session_flow(
        three_pauses(world),
        flow_type=flow_type,
        user_id="ada",
        default_tool_effect=ToolEffect.READ,
    )


async def invocation_of(sessions: AgentSessionClient, turn_id: str) -> str:
    page = await sessions.list_messages("s", turns=100)
    ids = {m.framework_item["invocation_id"] for m in page.messages if m.turn_id == turn_id}
    assert len(ids) == 1
    return str(ids.pop())


async def test_a_rewind_makes_a_session_and_leaves_the_given_one(tmp_path: Path) -> None:
    world = TreeWorld(script())
    flow = flow_of(world, "AsAdk")
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        runner = AdkSessionRunner(sessions, flow)
        await talk(sessions, ["one", "two", "three"])
        before = (await sessions.get_agent_snapshot("s"), await sessions.list_messages("s"))
        # One invocation is one turn, with all its pauses.
        fork = await runner.rewind_async(
            user_id="ada",
            session_id="s",
            rewind_before_invocation_id=await invocation_of(sessions, "t2"),
            new_session_id="f",
        )
        assert fork == SessionFork("f", execution_id="t2", source_session_id="s")
        assert (await sessions.get_agent_snapshot("f")).status == "idle"
        await say(sessions, "instead of two", "f")
        messages = (await sessions.list_messages("f")).messages
        replaced = [message for message in messages if message.turn_id == fork.execution_id]
        assert [message.text for message in replaced] == ["instead of two", "instead"]
        assert len(messages) == 6
        plain = TreeWorld({"root": [*script()["root"][:2], text("instead")]})
        await run_plain(three_pauses, plain, ["one", "instead of two"])
        assert _masked(world) == _masked(plain)
        assert before == (
            await sessions.get_agent_snapshot("s"),
            await sessions.list_messages("s"),
        )
        # With an id of its own the call is the same call; without one it is another.
        again = {"user_id": "ada", "session_id": "s", "rewind_before_invocation_id": "t2"}
        assert await runner.rewind_async(**again, new_session_id="f") == fork
        others = [await runner.rewind_async(**again) for _ in range(2)]
        assert len({"s", "f", *(other.session_id for other in others)}) == 4
        assert {other.execution_id for other in others} == {"t2"}
        # The fork has the turns before, but no power over its ancestor's.
        with pytest.raises(TurnTargetError, match="'t3' is none of its finished turns"):
            await runner.rewind_async(**{**again, "session_id": "f"} | _before("t3"))
        third = await invocation_of(sessions, "t3")
        with pytest.raises(TurnTargetError, match="has no finished turn of invocation"):
            await runner.rewind_async(**{**again, "session_id": "f"} | _before(third))
        from_ancestor = await runner.rewind_async(**again | _before("t3"))
        assert from_ancestor.execution_id == "t3"


def _before(target: str) -> dict[str, str]:
    return {"rewind_before_invocation_id": target}


def _masked(world: TreeWorld) -> Any:
    """The newest request; the tool's text holds an invocation id."""
    request = canonical(list(world.asked[-1]))
    for content in request[1]["contents"]:
        for part in content["parts"]:
            if response := part.get("function_response"):
                response["response"]["result"] = response["response"]["result"].split(" in ")[0]
    return request


async def test_wrong_targets_are_named_and_create_nothing(tmp_path: Path) -> None:
    world = TreeWorld(script())
    flow = flow_of(world, "AsAdkWrong")
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        runner = AdkSessionRunner(sessions, flow)
        await talk(sessions, ["one"])
        messages = (await sessions.list_messages("s")).messages
        first = await invocation_of(sessions, "t1")
        event_id = messages[1].framework_item["id"]

        async def refused(kind: type[Exception], match: str, **given: Any) -> None:
            arguments = {"user_id": "ada", "session_id": "s", "new_session_id": "f"} | given
            with pytest.raises(kind, match=match):
                await runner.rewind_async(**arguments)
            with pytest.raises(SessionNotFoundError):
                await sessions.get_agent_snapshot("f")

        for target in ("t1", first):
            await refused(TurnTargetError, "no turn before t1 to go back to", **_before(target))
        await refused(
            TurnTargetError, "is the id of an event of turn t1; only whole", **_before(event_id)
        )
        for target in ("e-unknown", "3f0f"):
            await refused(TurnTargetError, "no finished turn of invocation", **_before(target))
        await refused(TurnTargetError, "none of its finished turns", **_before("t9"))
        await refused(
            InvalidInputError, "must be 'ada', .* got 'bob'", user_id="bob", **_before("t1")
        )
        await refused(InvalidInputError, "an invocation id of ADK or a turn id", **_before(" "))
        await refused(SessionNotFoundError, "no session 'x'", session_id="x", **_before("t1"))
        await talk_again(sessions)
        with pytest.raises(SessionAlreadyExistsError):
            await runner.rewind_async(
                user_id="ada", session_id="s", new_session_id="s", **_before("t2")
            )


async def talk_again(sessions: AgentSessionClient) -> None:
    await sessions.send_user_message("s", "two")
    await sessions.wait_for_turn("s", 2, timeout_s=TURN_S)


def test_the_names_are_adks_and_nothing_else_is_there() -> None:
    ours = inspect.signature(AdkSessionRunner.rewind_async)
    theirs = inspect.signature(Runner.rewind_async)
    ids = {"user_id", "session_id", "rewind_before_invocation_id"}
    assert ids <= set(theirs.parameters)
    assert set(ours.parameters) == {"self", *ids, "new_session_id"}
    for name in ids:
        parameter = ours.parameters[name]
        assert (parameter.kind, parameter.default) == (
            inspect.Parameter.KEYWORD_ONLY,
            inspect.Parameter.empty,
        )
    assert typing.get_type_hints(AdkSessionRunner.rewind_async)["return"] is SessionFork
    # No second way to run turns, and no Runner of ADK to reach.
    public = [name for name in dir(AdkSessionRunner) if not name.startswith("_")]
    assert public == ["rewind_async"]
    assert not issubclass(AdkSessionRunner, Runner)


def test_another_frameworks_flow_is_refused() -> None:
    from core.scripted_runner import ScriptedRunner

    flow = AgentSessionFlow(ScriptedRunner([]), flow_type="NoAdk")
    sessions = AgentSessionClient.__new__(AgentSessionClient)
    with pytest.raises(
        TypeError, match="flow must be one of an ADK agent, but its runner is a Scr"
    ):
        AdkSessionRunner(sessions, flow)
    flow = adk_agent_session_flow(
        build(TreeWorld({})), flow_type="Adk", default_tool_effect=ToolEffect.READ
    )
    held = vars(AdkSessionRunner(sessions, flow)).values()
    assert not any(isinstance(value, Runner) for value in held)
