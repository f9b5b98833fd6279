"""What of an agent tree is refused when a runner is built, with the reason and the way out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.code_executors.built_in_code_executor import BuiltInCodeExecutor
from google.adk.tools._node_tool import NodeTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.load_artifacts_tool import LoadArtifactsTool
from google.adk.workflow import Workflow
from google.adk.workflow._base_node import BaseNode, _walk_static_nodes
from google.adk.workflow._tool_node import _ToolNode

from dex_agents._arguments import check_texts
from dex_agents._effects import ToolEffect, ToolPolicy
from dex_agents_google_adk._adk_compat import FRAMEWORK_CALLS, INPUT_CALL, node_behind
from dex_agents_google_adk._effects import CONTROL_TOOL_NAMES
from dex_agents_google_adk._pauses import YIELD_TOOL_NAME
from dex_agents_google_adk._tree import AgentTree

_RESERVED_TOOL_NAMES = FRAMEWORK_CALLS | {YIELD_TOOL_NAME}
_INLINE_MODES = ("single_turn", "task")
_LOADS_STATE = "_load_agent_state"


def check_tree(tree: AgentTree, resumable_agents: Collection[str]) -> None:
    """Refuse what a durable session cannot run.

    Raises:
        TypeError: A dynamic agent is no agent, or ``resumable_agents`` is one text.
        ValueError: What is wrong with which agent, and what to do.
    """
    root = tree.root
    check_texts("resumable_agents", resumable_agents)
    for agent in tree.dynamic_agents:
        if not isinstance(agent, BaseAgent):
            raise TypeError(f"dynamic_agents must hold ADK agents, got {type(agent).__name__}")
    if not isinstance(root, (BaseAgent, Workflow)):
        raise ValueError(
            f"The root {getattr(root, 'name', None)!r} is a {type(root).__name__}. A durable "
            f"session runs an agent or a Workflow; put the node into a Workflow."
        )
    if isinstance(root, BaseAgent) and root.parent_agent is not None:
        raise ValueError(
            f"Agent {root.name!r} is a sub-agent of {root.parent_agent.name!r}; pass the root of "
            f"the tree, or a clone() of the agent."
        )
    if isinstance(root, LlmAgent) and root.mode not in (None, "chat", "task"):
        raise ValueError(
            f"Agent {root.name!r} has mode={str(root.mode)!r}; a root agent in a durable session "
            f"needs the mode 'chat' or 'task'."
        )
    _check_agents(tree, resumable_agents)
    if isinstance(root, Workflow):
        _check_nodes(root)


def make_resumable(tree: AgentTree) -> None:
    """Let ADK start composite agents again when an invocation goes on.

    Without the mark ADK takes one that waits below a node for finished. It is a public field, and
    nothing but a resumption reads it.
    """
    for node in tree.nodes():
        if isinstance(node, BaseAgent):
            node.rerun_on_resume = True


def check_tool_nodes(tree: AgentTree, policies: Mapping[str, ToolPolicy]) -> None:
    """Refuse tools that stand as nodes of a Workflow and may write.

    Raises:
        ValueError: The tool, and what to do.
    """
    for tool in tool_nodes(tree):
        name = tool.name
        policy = policies.get(name)
        if policy is None or policy.effect is not ToolEffect.READ:
            raise ValueError(
                f"Tool {name!r} is a node of a Workflow. It runs inside RunModel, which may be "
                f"repeated; give it ToolPolicy(ToolEffect.READ) in tool_policies if it only reads, "
                f"else give the tool to an agent."
            )


def check_artifact_tools(tree: AgentTree) -> None:
    """Refuse ``load_artifacts`` where there is no artifact service: it looks there in every model call.

    Raises:
        ValueError: The agent, and what to do.
    """
    for agent in tree.llm_agents():
        if any(isinstance(tool, LoadArtifactsTool) for tool in static_tools(agent)):
            raise ValueError(
                f"agent {agent.name!r} has the tool load_artifacts, and there is no artifact_service; "
                f"every model call would fail. Give one, such as GcsArtifactService, or leave the "
                f"tool out"
            )


def _check_agents(tree: AgentTree, resumable_agents: Collection[str]) -> None:
    names = {node.name for node in tree.nodes()}
    if unknown := sorted(set(resumable_agents) - names):
        raise ValueError(
            f"resumable_agents names {', '.join(map(repr, unknown))}, but the tree has no such agent"
        )
    for node in tree.nodes():
        if isinstance(node, LlmAgent):
            _check_llm_agent(node, tree.root)
    for agent in tree.own_loop_agents:
        _check_custom_agent(agent, resumable_agents)


def _check_llm_agent(agent: LlmAgent, root: BaseNode) -> None:
    name = agent.name
    if type(agent)._run_async_impl is not LlmAgent._run_async_impl:
        raise ValueError(
            f"Agent {name!r} is a {type(agent).__name__} with a run loop of its own, which cannot "
            f"be paused; use LlmAgent with callbacks."
        )
    if agent.mode in _INLINE_MODES and isinstance(agent.parent_agent, LlmAgent):
        _check_inline(agent, agent.parent_agent, root)
    if outside := _beyond_single_turn(agent, root):
        raise ValueError(
            f"Agent {name!r} runs as a single turn and has the sub-agent {outside!r}, which does "
            f"not. ADK runs what such an agent hands over twice, and never the tasks that it hands "
            f"on; give {outside!r} mode='single_turn', or {name!r} another mode."
        )
    _check_code_executor(agent)
    for tool in agent.tools:
        _check_tool(agent, tool)
    names = [tool.name for tool in static_tools(agent)]
    if repeated := sorted({tool for tool in names if names.count(tool) > 1}):
        raise ValueError(
            f"Agent {name!r} has several tools named {', '.join(map(repr, repeated))}; a tool Step "
            f"finds its tool by name, so give each a name of its own."
        )


def _check_inline(agent: LlmAgent, parent: LlmAgent, root: BaseNode) -> None:
    runs_nodes = isinstance(root, (LlmAgent, Workflow))
    if _is_node(parent, root) or (agent.mode == "single_turn" and runs_nodes):
        return
    raise ValueError(
        f"Agent {agent.name!r} has mode={str(agent.mode)!r}, but the agent {parent.name!r}, which "
        f"calls it, runs below a composite agent, where ADK gives such a call no answer. Put the "
        f"composite agent below a root LlmAgent or into a Workflow (for mode='single_turn'), or let "
        f"{agent.name!r} be reached by transfer."
    )


def _is_node(agent: BaseAgent, root: BaseNode) -> bool:
    """Whether ADK runs the agent as a node of its own."""
    parent = agent.parent_agent
    return (
        agent is root or parent is None or (isinstance(parent, LlmAgent) and _is_node(parent, root))
    )


def _beyond_single_turn(agent: LlmAgent, root: BaseNode) -> str | None:
    """A sub-agent of an agent that answers once, as nodes of a Workflow do, which does not.

    What a node could transfer to is refused with the Workflow.
    """
    is_node = agent.parent_agent is None and agent is not root
    if agent.mode != "single_turn" and not (is_node and agent.mode is None):
        return None
    allowed = (None, "chat", "single_turn") if is_node else ("single_turn",)
    beyond = (sub.name for sub in agent.sub_agents if getattr(sub, "mode", None) not in allowed)
    return next(beyond, None)


def _check_custom_agent(agent: BaseAgent, resumable_agents: Collection[str]) -> None:
    name, kind = agent.name, type(agent).__name__
    if name in resumable_agents:
        return
    if isinstance(agent.parent_agent, ParallelAgent):
        raise ValueError(
            f"Agent {name!r} is a {kind} in a ParallelAgent, which would start it again whenever "
            f"another branch goes on after a pause. If it goes on by itself where it stopped, name "
            f"it in resumable_agents; else put it before or behind the ParallelAgent."
        )
    run = getattr(type(agent)._run_async_impl, "__code__", None)
    if agent.sub_agents and (run is None or _LOADS_STATE not in run.co_names):
        raise ValueError(
            f"Agent {name!r} is a {kind} whose run loop does not load its state, so after a pause "
            f"it would run its sub-agents again from the first. Use SequentialAgent, LoopAgent, "
            f"ParallelAgent or Workflow, load the state as they do, or name it in resumable_agents "
            f"if it goes on where it stopped."
        )


def _check_nodes(workflow: Workflow) -> None:
    for node in workflow._iter_static_children():
        if isinstance(node, Workflow):
            _check_nodes(node)
        elif isinstance(node, LlmAgent) and node.mode != "chat" and _can_transfer(node):
            raise ValueError(
                f"Node {node.name!r} of Workflow {workflow.name!r} is a {type(node).__name__} that can "
                f"transfer to its sub_agents. ADK runs what such a node hands over twice, inside the "
                f"node and from the Workflow; make the sub-agents nodes, or give the node, if it is "
                f"the first, mode='chat'."
            )


def _can_transfer(agent: LlmAgent) -> bool:
    return any(getattr(sub, "mode", None) not in _INLINE_MODES for sub in agent.sub_agents)


def _check_code_executor(agent: LlmAgent) -> None:
    executor = agent.code_executor
    if executor is not None and not isinstance(executor, BuiltInCodeExecutor):
        raise ValueError(
            f"Agent {agent.name!r} has the code executor {type(executor).__name__}, which would "
            f"run the model's code again when a Step is repeated. Use BuiltInCodeExecutor, or run "
            f"such code in a tool."
        )


def _check_tool(agent: LlmAgent, tool: Any) -> None:
    where = f"Agent {agent.name!r}"
    if isinstance(tool, BaseToolset):
        return
    known = _as_tool(tool)
    if known.name == INPUT_CALL and known.is_long_running:
        return
    if known.name in _RESERVED_TOOL_NAMES:
        raise ValueError(f"{where} has a tool with the reserved name {known.name!r}; rename it.")
    if (behind := node_behind(known)) is not None:
        for node in _walk_static_nodes(behind):
            if isinstance(node, LlmAgent):
                _check_code_executor(node)


def _as_tool(tool: Any) -> BaseTool:
    if isinstance(tool, BaseNode):
        return NodeTool(tool)
    return tool if isinstance(tool, BaseTool) else FunctionTool(tool)


def tool_nodes(tree: AgentTree) -> Iterator[BaseTool]:
    """The tools that stand as nodes of a Workflow."""
    for node in tree.nodes():
        if isinstance(node, _ToolNode):
            yield node.tool


def taken_tool_names(tree: AgentTree) -> dict[str, str]:
    """Names that no tool of a source may have, and what has each."""
    taken = dict.fromkeys((*CONTROL_TOOL_NAMES, *_RESERVED_TOOL_NAMES), "an ADK control tool")
    for agent in tree.llm_agents():
        for tool in static_tools(agent):
            taken[tool.name] = f"a tool of agent {agent.name!r}"
    for tool in tool_nodes(tree):
        taken[tool.name] = "a node of a Workflow"
    taken.update((name, "an agent") for name in tree.agent_names)
    return taken


def static_tools(agent: LlmAgent) -> Iterator[BaseTool]:
    """The tools that the agent declares itself, without those of toolsets."""
    for tool in agent.tools:
        if not isinstance(tool, BaseToolset):
            yield _as_tool(tool)
