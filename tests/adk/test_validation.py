"""What is refused when a runner is built names the agent, the reason and the way out."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents.base_agent import BaseAgent, BaseAgentState
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.agents.run_config import RunConfig, StreamingMode  # type: ignore[attr-defined]
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.apps.app import App
from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService
from google.adk.code_executors.built_in_code_executor import BuiltInCodeExecutor
from google.adk.code_executors.unsafe_local_code_executor import UnsafeLocalCodeExecutor
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.exit_loop_tool import exit_loop
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.load_artifacts_tool import LoadArtifactsTool
from google.adk.workflow import Workflow, node

from dex_agents._effects import ToolEffect, ToolPolicy
from dex_agents_google_adk import AdkAgentRunner
from dex_agents_google_adk._first_plugin import FIRST_PLUGIN_NAME


def leaf(name: str = "root", **fields: Any) -> LlmAgent:
    return LlmAgent(name=name, model="gemini-2.5-flash", **fields)


def look(x: str) -> str:
    """Look."""
    return x


def flow_tool(agent: LlmAgent) -> Workflow:
    return Workflow(name="flow", input_schema=str, edges=[("START", agent)])


class Custom(BaseAgent):
    pass


class Named(BasePlugin):
    pass


class OwnLoop(LlmAgent):
    async def _run_async_impl(self, ctx: Any) -> Any:
        yield None


def renamed(name: str) -> FunctionTool:
    tool = FunctionTool(look)
    tool.name = name
    return tool


def chat() -> LlmAgent:
    return leaf("router", sub_agents=[leaf("inner")], mode="chat")


def caller(mode: str) -> LlmAgent:
    return leaf("caller", sub_agents=[leaf("inner", mode=mode)])


def child() -> LlmAgent:
    inner = leaf("inner")
    SequentialAgent(name="parent", sub_agents=[inner])
    return inner


REFUSED: list[tuple[Any, str]] = [
    (
        lambda: ParallelAgent(name="p", sub_agents=[Custom(name="c"), leaf()]),
        "'c' is a Custom in a ParallelAgent.*resumable_agents",
    ),
    (
        lambda: Custom(name="c", sub_agents=[leaf()]),
        "'c' is a Custom whose run loop does not load its state.*resumable_agents",
    ),
    (
        lambda: SequentialAgent(name="s", sub_agents=[caller("single_turn")]),
        "'inner' has mode='single_turn', but the agent 'caller'.*below a composite agent",
    ),
    (
        lambda: leaf(sub_agents=[SequentialAgent(name="s", sub_agents=[caller("task")])]),
        "'inner' has mode='task', but the agent 'caller'.*reached by transfer",
    ),
    (
        lambda: leaf(sub_agents=[leaf("s", mode="single_turn", sub_agents=[leaf("inner")])]),
        "'s' runs as a single turn and has the sub-agent 'inner'.*another mode",
    ),
    (
        lambda: Workflow(name="w", edges=[("START", caller("task"))]),
        "'caller' runs as a single turn and has the sub-agent 'inner'.*never the tasks",
    ),
    (lambda: leaf(mode="single_turn"), "'root' has mode='single_turn'"),
    (lambda: node(look), "root 'look' is a FunctionNode.*into a Workflow"),
    (
        lambda: App.model_construct(name="a", root_agent=leaf(), plugins=[Named("x"), Named("x")]),
        "several plugins named 'x'",
    ),
    (
        lambda: App(name="a", root_agent=leaf(), plugins=[Named(FIRST_PLUGIN_NAME)]),
        "plugin with the reserved name",
    ),
    (
        lambda: Workflow(name="w", edges=[("START", leaf(sub_agents=[leaf("inner")]))]),
        "'root' of Workflow 'w' is a LlmAgent that can transfer.*mode='chat'",
    ),
    (
        lambda: Workflow(name="w", edges=[("START", leaf("x"), FunctionTool(look))]),
        "'look' is a node of a Workflow.*ToolPolicy",
    ),
    (child, "'inner' is a sub-agent of 'parent'"),
    (lambda: OwnLoop(name="o", model="m"), "'o' is a OwnLoop with a run loop"),
    (
        lambda: leaf(code_executor=UnsafeLocalCodeExecutor()),
        "UnsafeLocalCodeExecutor.*BuiltInCodeExecutor",
    ),
    (
        lambda: leaf(tools=[AgentTool(leaf("inner", code_executor=UnsafeLocalCodeExecutor()))]),
        "'inner' has the code executor",
    ),
    (
        lambda: leaf(tools=[flow_tool(leaf("inner", code_executor=UnsafeLocalCodeExecutor()))]),
        "'inner' has the code executor",
    ),
    (
        lambda: leaf(tools=[flow_tool(leaf("inner")), renamed("flow")]),
        "several tools named 'flow'",
    ),
    (lambda: leaf(tools=[look, FunctionTool(look)]), "several tools named 'look'"),
    (lambda: leaf(tools=[renamed("adk_request_confirmation")]), "reserved name"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make,message", REFUSED, ids=[message for _, message in REFUSED])
def test_refused_agents(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AdkAgentRunner(make())


@pytest.mark.parametrize(
    "arguments,kind,message",
    [
        ({"agent": "x"}, TypeError, "must be an ADK agent, Workflow or App, got str"),
        ({"tool_policies": []}, TypeError, "must map tool names"),
        ({"tool_policies": {"look": "read"}}, TypeError, r"\['look'\] must be a ToolPolicy"),
        (
            {"tool_policies": {"lok": ToolPolicy(ToolEffect.READ)}},
            ValueError,
            "'lok'.*tools are 'exit_loop', 'look'",
        ),
        (
            {"tool_policies": {"exit_loop": ToolPolicy(ToolEffect.READ)}},
            ValueError,
            "steers ADK itself",
        ),
        ({"default_tool_effect": "read"}, TypeError, "must be a ToolEffect"),
        ({"run_config": {}}, TypeError, "must be an ADK RunConfig"),
        ({"run_config": RunConfig(streaming_mode=StreamingMode.BIDI)}, ValueError, "live API"),
        ({"run_config": RunConfig(support_cfc=True)}, ValueError, "live API"),
        (
            {"run_config": RunConfig(get_session_config=GetSessionConfig())},
            ValueError,
            "cut the history",
        ),
        ({"user_id": ""}, ValueError, "user_id"),
        ({"user_id": 1}, TypeError, "user_id"),
        ({"artifact_service": object()}, TypeError, "must be a BaseArtifactService"),
        (
            {"agent": leaf("x", sub_agents=[leaf(tools=[LoadArtifactsTool()])])},
            ValueError,
            "'root' has the tool load_artifacts, and there is no artifact_service",
        ),
        ({"memory_service": object()}, TypeError, "must be a BaseMemoryService"),
        ({"credential_service": object()}, TypeError, "must be a BaseCredentialService"),
        ({"tools_in_threads": 1}, TypeError, "True or False"),
        ({"loop_bound_tools": "look"}, TypeError, "loop_bound_tools must be a list of texts"),
        ({"loop_bound_tools": ["lok"]}, ValueError, "loop_bound_tools names 'lok'"),
        ({"tool_threads": 0}, ValueError, "positive"),
        ({"dynamic_agents": ["x"]}, TypeError, "must hold ADK agents, got str"),
        ({"resumable_agents": "x"}, TypeError, "resumable_agents must be a list of texts"),
        ({"resumable_agents": ["x"]}, ValueError, "names 'x', but the tree has no such agent"),
    ],
)
def test_refused_arguments(arguments: Any, kind: type[Exception], message: str) -> None:
    agent = arguments.pop("agent", None) or leaf(tools=[look, exit_loop])
    with pytest.raises(kind, match=message):
        AdkAgentRunner(agent, **arguments)


class LoadsState(BaseAgent):
    async def _run_async_impl(self, ctx: Any) -> Any:
        self._load_agent_state(ctx, BaseAgentState)
        yield None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_accepted() -> None:
    AdkAgentRunner(Custom(name="c", sub_agents=[leaf("x")]), resumable_agents=["c"])
    AdkAgentRunner(LoadsState(name="c", sub_agents=[leaf("x")]))
    AdkAgentRunner(SequentialAgent(name="s", sub_agents=[Custom(name="c"), leaf()]))
    AdkAgentRunner(leaf(mode="task"))
    AdkAgentRunner(Workflow(name="w", edges=[("START", chat(), leaf("after"))]))
    nested = Workflow(name="nested", edges=[("START", chat())])
    AdkAgentRunner(Workflow(name="w", edges=[("START", (nested, leaf("beside")))]))
    AdkAgentRunner(leaf(sub_agents=[ParallelAgent(name="p", sub_agents=[caller("single_turn")])]))
    sequence = SequentialAgent(name="s", sub_agents=[caller("single_turn")])
    AdkAgentRunner(Workflow(name="w", edges=[("START", sequence)]))
    AdkAgentRunner(
        Workflow(name="w", edges=[("START", leaf("x"), FunctionTool(look))]),
        tool_policies={"look": ToolPolicy(ToolEffect.READ)},
    )
    AdkAgentRunner(leaf(code_executor=BuiltInCodeExecutor(), mode="chat"))
    AdkAgentRunner(App(name="a", root_agent=leaf()), run_config=RunConfig())
    AdkAgentRunner(leaf(tools=[LoadArtifactsTool()]), artifact_service=InMemoryArtifactService())
