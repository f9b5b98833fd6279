"""What is refused when a runner is built, with the reason and the way out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode  # type: ignore[attr-defined]
from google.adk.apps.app import App
from google.adk.code_executors.built_in_code_executor import BuiltInCodeExecutor
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool
from google.adk.workflow._base_node import BaseNode, _walk_static_nodes

from dex_agents._effects import ToolEffect, ToolPolicy
from dex_agents_google_adk._adk_compat import FRAMEWORK_CALLS, is_generator_tool
from dex_agents_google_adk._effects import is_control_tool
from dex_agents_google_adk._plugins import FIRST_PLUGIN_NAME, LAST_PLUGIN_NAME, YIELD_TOOL_NAME

_RESERVED_TOOL_NAMES = FRAMEWORK_CALLS | {YIELD_TOOL_NAME}


def checked_app(agent: BaseAgent | App) -> tuple[App, LlmAgent]:
    """The App to run and its root.

    Raises:
        TypeError: ``agent`` is neither an agent nor an App.
        ValueError: A durable session does not support its shape.
    """
    if isinstance(agent, App):
        app = agent
    elif isinstance(agent, BaseNode):
        app = App.model_construct(name=_app_name(agent.name), root_agent=agent, plugins=[])
    else:
        raise TypeError(
            f"agent must be an ADK agent or App, got {type(agent).__name__}; for example "
            "LlmAgent(name='support', model='gemini-2.5-flash')"
        )
    if app.events_compaction_config is not None:
        raise ValueError(
            f"App {app.name!r} has an events_compaction_config. The session owns its history; "
            f"remove the "
            "configuration from the App."
        )
    for plugin in app.plugins:
        if plugin.name in (FIRST_PLUGIN_NAME, LAST_PLUGIN_NAME):
            raise ValueError(
                f"App {app.name!r} has a plugin with the reserved name {plugin.name!r}"
            )
    names = [plugin.name for plugin in app.plugins]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"App {app.name!r} has several plugins named {', '.join(map(repr, repeated))}; ADK "
            "tells plugins apart by their names, so give each one of its own."
        )
    root = app.root_agent
    if not isinstance(root, LlmAgent):
        raise ValueError(
            f"The root {getattr(root, 'name', None)!r} is a {type(root).__name__}. A durable "
            f"session supports "
            "an LlmAgent without sub_agents; use one, with an AgentTool for each further agent."
        )
    _check_agent(root)
    return app, root


def _app_name(name: str) -> str:
    return name if name[:1].isalpha() and name.isascii() else f"app{name}"


def _check_agent(agent: LlmAgent) -> None:
    name = agent.name
    if agent.parent_agent is not None:
        raise ValueError(
            f"Agent {name!r} is a sub-agent of {agent.parent_agent.name!r}; pass the root of the "
            f"tree, or a "
            "clone() of the agent."
        )
    if agent.sub_agents:
        raise ValueError(
            f"Agent {name!r} has sub_agents, which a durable session does not support yet; offer "
            f"each through an "
            "AgentTool instead."
        )
    if type(agent)._run_async_impl is not LlmAgent._run_async_impl:
        raise ValueError(
            f"Agent {name!r} is a {type(agent).__name__} with a run loop of its own, which cannot "
            f"be paused; "
            "use LlmAgent with callbacks."
        )
    if agent.mode not in (None, "chat"):
        raise ValueError(
            f"Agent {name!r} has mode={str(agent.mode)!r}; a root agent in a durable session needs "
            f"the mode 'chat'."
        )
    _check_code_executor(agent)
    for tool in agent.tools:
        _check_tool(agent, tool)
    names = [tool.name for tool in static_tools(agent)]
    if repeated := sorted({tool for tool in names if names.count(tool) > 1}):
        raise ValueError(
            f"Agent {name!r} has several tools named {', '.join(map(repr, repeated))}; a tool Step "
            f"finds its tool by "
            "name, so give each a name of its own."
        )


def _check_code_executor(agent: LlmAgent) -> None:
    executor = agent.code_executor
    if executor is not None and not isinstance(executor, BuiltInCodeExecutor):
        raise ValueError(
            f"Agent {agent.name!r} has the code executor {type(executor).__name__}, which would "
            f"run the model's code "
            "again when a Step is repeated. Use BuiltInCodeExecutor, or run such code in a tool."
        )


def _check_tool(agent: LlmAgent, tool: Any) -> None:
    where = f"Agent {agent.name!r}"
    if isinstance(tool, BaseToolset):
        return
    if isinstance(tool, BaseNode):
        raise ValueError(
            f"{where} has the Workflow node {tool.name!r} as a tool, which a durable session does "
            f"not support yet; "
            "wrap what it does in a function."
        )
    known = _as_tool(tool)
    if known.name in _RESERVED_TOOL_NAMES:
        raise ValueError(f"{where} has a tool with the reserved name {known.name!r}; rename it.")
    if known.is_long_running:
        raise ValueError(
            f"{where} has the long-running tool {known.name!r}, which a durable session does not "
            f"support yet. An "
            "ordinary tool may take as long as it needs, and survives a crash of the Worker."
        )
    if is_generator_tool(known):
        raise ValueError(
            f"{where} has the generator tool {known.name!r}, which a durable session does not "
            f"support yet; return the "
            "result instead of yielding it."
        )
    if type(known).__name__ == "NodeTool":
        raise ValueError(
            f"{where} has the NodeTool {known.name!r}, which a durable session does not support "
            f"yet; wrap what it does "
            "in a function."
        )
    if isinstance(known, AgentTool):
        for node in _walk_static_nodes(known.agent):
            if isinstance(node, LlmAgent):
                _check_code_executor(node)


def _as_tool(tool: Any) -> BaseTool:
    return tool if isinstance(tool, BaseTool) else FunctionTool(tool)


def static_tools(agent: LlmAgent) -> Iterator[BaseTool]:
    """The tools that the agent declares itself, without those of toolsets."""
    for tool in agent.tools:
        if not isinstance(tool, (BaseToolset, BaseNode)):
            yield _as_tool(tool)


def check_names(agent: LlmAgent, names: Collection[str], argument: str) -> None:
    """Refuse names that no tool can have.

    Raises:
        ValueError: ``names`` holds one that no declared tool has, and there is no toolset that
            might.
    """
    if any(isinstance(tool, BaseToolset) for tool in agent.tools):
        return
    known = sorted(tool.name for tool in static_tools(agent))
    if unknown := sorted(set(names) - set(known)):
        raise ValueError(
            f"{argument} names {', '.join(map(repr, unknown))}, but agent {agent.name!r} has no "
            f"such tool; its tools "
            f"are {', '.join(map(repr, known)) or 'none'}"
        )


def checked_policies(
    agent: LlmAgent, policies: Mapping[str, ToolPolicy] | None
) -> dict[str, ToolPolicy]:
    """The policies, each of a tool that exists.

    Raises:
        TypeError: A value is no ToolPolicy.
        ValueError: No tool has the name, or the tool never gets a Step.
    """
    if policies is None:
        return {}
    if not isinstance(policies, Mapping):
        raise TypeError(f"tool_policies must map tool names to ToolPolicy, got {policies!r}")
    for name, policy in policies.items():
        if not isinstance(name, str) or not isinstance(policy, ToolPolicy):
            raise TypeError(
                f"tool_policies[{name!r}] must be a ToolPolicy, got {policy!r}; write for example "
                "ToolPolicy(ToolEffect.READ)"
            )
    check_names(agent, policies, "tool_policies")
    for tool in static_tools(agent):
        if tool.name in policies and is_control_tool(tool):
            raise ValueError(
                f"tool_policies has a policy for {tool.name!r}, which steers ADK itself and runs "
                f"inside RunModel"
            )
    return dict(policies)


def checked_effect(effect: ToolEffect) -> ToolEffect:
    """The default effect.

    Raises:
        TypeError: It is no ToolEffect.
    """
    if not isinstance(effect, ToolEffect):
        raise TypeError(f"default_tool_effect must be a ToolEffect, got {effect!r}")
    return effect


def checked_run_config(run_config: RunConfig | None) -> RunConfig:
    """The run configuration, by default with streaming.

    Raises:
        TypeError: It is no RunConfig.
        ValueError: It asks for what a durable session cannot give.
    """
    if run_config is None:
        return RunConfig(streaming_mode=StreamingMode.SSE)
    if not isinstance(run_config, RunConfig):
        raise TypeError(f"run_config must be an ADK RunConfig, got {type(run_config).__name__}")
    if run_config.streaming_mode is StreamingMode.BIDI or run_config.support_cfc:
        raise ValueError(
            "run_config asks for the live API (StreamingMode.BIDI or support_cfc), which a durable "
            "session does not "
            "support; use StreamingMode.SSE or NONE"
        )
    if run_config.get_session_config is not None:
        raise ValueError(
            "run_config.get_session_config would cut the history off before the paused turn; "
            "remove it"
        )
    return run_config


def checked_service(service: Any, kind: type[Any], argument: str) -> Any:
    """An optional ADK service.

    Raises:
        TypeError: It is of another kind.
    """
    if service is not None and not isinstance(service, kind):
        raise TypeError(f"{argument} must be a {kind.__name__}, got {type(service).__name__}")
    return service
