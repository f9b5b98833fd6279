"""What the arguments of the factory and the runner do to a served session."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.loop_agent import LoopAgent
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.apps.app import App
from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService
from google.adk.auth.credential_service.in_memory_credential_service import (
    InMemoryCredentialService,
)
from google.adk.memory.in_memory_memory_service import InMemoryMemoryService
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import Workflow
from google.genai import types

from dex_agents import AgentSessionFlow, ToolEffect
from dex_agents.testing import private_engine
from dex_agents_google_adk import AdkAgentRunner, adk_agent_session_flow
from support.adk_oracle import ScriptedLlm, World, call, text
from support.serving import serve

TURN_S = 40.0
FLOW_ONLY = {
    "flow_type",
    "interrupt_deadline",
    "event_stream_capacity_bytes",
    "compaction",
    "options",
}


def test_the_runner_takes_what_the_factory_takes_but_for_the_flow_s_own() -> None:
    factory = inspect.signature(adk_agent_session_flow).parameters
    runner = {
        name: parameter
        for name, parameter in inspect.signature(AdkAgentRunner.__init__).parameters.items()
        if name != "self"
    }
    assert set(factory) - set(runner) == FLOW_ONLY
    assert set(runner) <= set(factory)
    for name, parameter in runner.items():
        assert parameter.default == factory[name].default, name
        assert parameter.kind == factory[name].kind, name


def test_defaults_are_as_documented() -> None:
    parameters = inspect.signature(adk_agent_session_flow).parameters
    assert parameters["user_id"].default == "user"
    assert parameters["event_stream_capacity_bytes"].default == 10_485_760
    assert parameters["default_tool_effect"].default is ToolEffect.UNCLASSIFIED
    for name in ("artifact_service", "memory_service", "credential_service", "run_config"):
        assert parameters[name].default is None
    assert [effect.value for effect in ToolEffect] == [
        "read",
        "idempotent_write",
        "non_idempotent_write",
        "unclassified",
    ]


def roots() -> dict[str, Any]:
    """One root of each class."""

    def leaf(name: str) -> LlmAgent:
        return LlmAgent(name=name, model=ScriptedLlm(world=World([])))

    def node(node_input: Any) -> str:
        """A node."""
        return "x"

    return {
        "LlmAgent": leaf("root"),
        "SequentialAgent": SequentialAgent(name="root", sub_agents=[leaf("a")]),
        "LoopAgent": LoopAgent(name="root", sub_agents=[leaf("a")], max_iterations=1),
        "ParallelAgent": ParallelAgent(name="root", sub_agents=[leaf("a"), leaf("b")]),
        "Workflow": Workflow(name="root", edges=[("START", node), (node, leaf("a"))]),
        "App": App(name="root", root_agent=leaf("root")),
    }


@pytest.mark.parametrize("kind", sorted(roots()))
def test_any_root_of_adk_builds_a_flow(kind: str) -> None:
    flow = adk_agent_session_flow(roots()[kind], flow_type="Support")
    assert isinstance(flow, AgentSessionFlow)
    assert flow.get_flow_type() == "Support"


class CountingToolset(BaseToolset):
    """Counts who closes it."""

    def __init__(self, tool: FunctionTool) -> None:
        super().__init__()
        self.tool = tool
        self.closed = 0

    async def get_tools(self, readonly_context: Any = None) -> list[Any]:
        return [self.tool]

    async def close(self) -> None:
        self.closed += 1


class CountingPlugin(BasePlugin):
    """Counts who closes it."""

    closed = 0

    async def close(self) -> None:
        self.closed += 1


async def test_ids_services_and_owners_of_a_served_session(tmp_path: Path) -> None:
    world = World([call("remember"), text("done")] * 2)
    seen: list[tuple[str, str, str]] = []
    artifacts = InMemoryArtifactService()

    def note(where: str, context: Any) -> None:
        seen.append((where, context.session.id, context.user_id))

    async def remember(tool_context: ToolContext) -> dict[str, Any]:
        """Remember."""
        note("tool", tool_context)
        part = types.Part(text="kept")
        version = await tool_context.save_artifact("note.txt", part)
        found = await tool_context.search_memory("anything")
        tool_context.state["app:shared"] = tool_context.session.id
        tool_context.state["user:mine"] = tool_context.session.id
        return {"version": version, "memories": len(found.memories)}

    def before_model(callback_context: Any, llm_request: Any) -> None:
        note("callback", callback_context)
        world.log(str(sorted(callback_context.state.to_dict().items())))

    toolset = CountingToolset(FunctionTool(remember))
    plugin = CountingPlugin("counting")
    root = LlmAgent(
        name="root",
        model=ScriptedLlm(world=world),
        tools=[toolset],
        before_model_callback=before_model,
    )
    flow = adk_agent_session_flow(
        App(name="shop", root_agent=root, plugins=[plugin]),
        flow_type="Owned",
        default_tool_effect=ToolEffect.READ,
        user_id="ada",
        artifact_service=artifacts,
        memory_service=InMemoryMemoryService(),
        credential_service=InMemoryCredentialService(),
    )
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        for session_id in ("order-1", "order-2"):
            await sessions.start_session(session_id, "go")
            await sessions.wait_for_turn(session_id, 1, timeout_s=TURN_S)
    assert {entry[2] for entry in seen} == {"ada"}
    assert [entry[:2] for entry in seen] == [
        ("callback", "order-1"),
        ("tool", "order-1"),
        ("callback", "order-1"),
        ("callback", "order-2"),
        ("tool", "order-2"),
        ("callback", "order-2"),
    ]
    # Each session has state of its own, whatever its prefix.
    shared = "[('app:shared', '{0}'), ('user:mine', '{0}')]"
    assert world.callbacks == ["[]", shared.format("order-1"), "[]", shared.format("order-2")]
    for session_id in ("order-1", "order-2"):
        keys = await artifacts.list_artifact_keys(
            app_name="shop", user_id="ada", session_id=session_id
        )
        assert keys == ["note.txt"]
    assert toolset.closed == 0
    assert plugin.closed == 0


async def test_a_small_budget_of_the_stream_drops_the_oldest_events(tmp_path: Path) -> None:
    word = "x" * 20_000
    world = World([text(f"{number} {word}") for number in range(12)])
    root = LlmAgent(name="root", model=ScriptedLlm(world=world))
    flow = adk_agent_session_flow(root, flow_type="Small", event_stream_capacity_bytes=131_072)
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await sessions.start_session("s", "go")
        for turn in range(2, 13):
            await sessions.wait_for_turn("s", turn - 1, timeout_s=TURN_S)
            await sessions.send_user_message("s", f"m{turn}")
        snapshot = await sessions.wait_for_turn("s", 12, timeout_s=TURN_S)
        assert snapshot.last_turn is not None
        last = snapshot.last_turn.turn_id
        texts = []
        async for batch in sessions.read_events("s"):
            texts += [event.data["text"] for event in batch.events if event.type == "text_delta"]
            if any(
                event.type == "turn_completed" and event.turn_id == last for event in batch.events
            ):
                break
    assert texts
    assert texts[-1].startswith("11 ")
    assert not texts[0].startswith("0 ")
    assert sum(map(len, texts)) <= 131_072


@pytest.mark.parametrize("base", [BaseAgent])
def test_an_agent_class_of_ones_own_needs_to_say_that_it_resumes(base: type[BaseAgent]) -> None:
    class Router(base):  # type: ignore[misc,valid-type]
        async def _run_async_impl(self, ctx: Any) -> Any:
            for agent in self.sub_agents:
                async for event in agent.run_async(ctx):
                    yield event

    router = Router(name="root", sub_agents=[LlmAgent(name="a", model=ScriptedLlm(world=None))])
    with pytest.raises(ValueError, match="resumable_agents"):
        adk_agent_session_flow(router, flow_type="Own")
    adk_agent_session_flow(router, flow_type="Own", resumable_agents=["root"])
