"""What is refused when a runner is built, with the reason and the way out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.run_config import RunConfig, StreamingMode  # type: ignore[attr-defined]
from google.adk.apps.app import App
from google.adk.auth.credential_service.base_credential_service import BaseCredentialService
from google.adk.auth.credential_service.session_state_credential_service import (
    SessionStateCredentialService,
)
from google.adk.tools.base_toolset import BaseToolset
from google.adk.workflow._base_node import BaseNode

from dex_agents._arguments import shown
from dex_agents._effects import ToolEffect, ToolPolicy
from dex_agents_google_adk._effects import is_control_tool
from dex_agents_google_adk._events_compaction import check_events_compaction
from dex_agents_google_adk._first_plugin import FIRST_PLUGIN_NAME
from dex_agents_google_adk._last_plugin import LAST_PLUGIN_NAME
from dex_agents_google_adk._tree import AgentTree
from dex_agents_google_adk._tree_checks import check_tree, static_tools, tool_nodes


def checked_app(
    agent: BaseNode | App,
    dynamic_agents: Collection[BaseAgent] = (),
    resumable_agents: Collection[str] = (),
) -> tuple[App, AgentTree]:
    """The App to run and its tree.

    Raises:
        TypeError: ``agent`` is neither an agent nor a Workflow nor an App.
        ValueError: A durable session does not support its shape.
    """
    if isinstance(agent, App):
        app = agent
    elif isinstance(agent, BaseNode):
        app = App.model_construct(name=_app_name(agent.name), root_agent=agent, plugins=[])
    else:
        raise TypeError(
            f"agent must be an ADK agent, Workflow or App, got {type(agent).__name__}; for example "
            "LlmAgent(name='support', model='gemini-2.5-flash')"
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
    if root is None:
        raise TypeError(f"App {app.name!r} has no root_agent")
    if not isinstance(dynamic_agents, Collection):
        raise TypeError(
            f"dynamic_agents must be a list of ADK agents, got {type(dynamic_agents).__name__}"
        )
    tree = AgentTree(root, tuple(dynamic_agents))
    check_tree(tree, resumable_agents)
    check_events_compaction(app, tree)
    return app, tree


def _app_name(name: str) -> str:
    return name if name[:1].isalpha() and name.isascii() else f"app{name}"


def check_names(
    tree: AgentTree,
    names: Collection[str],
    argument: str,
    source_names: Collection[str] | None = (),
) -> None:
    """Refuse names that no tool can have.

    Args:
        source_names: Names of the tools of sources, ``None`` if they tell them only when listed.

    Raises:
        ValueError: ``names`` holds one that no declared tool has, and there is no toolset that
            might.
    """
    agents = list(tree.llm_agents())
    if source_names is None or any(
        isinstance(tool, BaseToolset) for agent in agents for tool in agent.tools
    ):
        return
    declared = {tool.name for agent in agents for tool in static_tools(agent)}
    known = sorted(declared | {tool.name for tool in tool_nodes(tree)} | set(source_names))
    if unknown := sorted(set(names) - set(known)):
        who = f"agent {agents[0].name!r} has" if len(agents) == 1 else "the agents have"
        raise ValueError(
            f"{argument} names {', '.join(map(repr, unknown))}, but {who} no such tool; the tools "
            f"are {', '.join(map(repr, known)) or 'none'}"
        )


def checked_policies(
    tree: AgentTree,
    policies: Mapping[str, ToolPolicy] | None,
    source_names: Collection[str] | None = (),
) -> dict[str, ToolPolicy]:
    """The policies, each of a tool that exists.

    Raises:
        TypeError: A value is no ToolPolicy.
        ValueError: No tool has the name, or the tool never gets a Step.
    """
    if policies is None:
        return {}
    if not isinstance(policies, Mapping):
        raise TypeError(f"tool_policies must map tool names to ToolPolicy, got {shown(policies)}")
    for name, policy in policies.items():
        if not isinstance(name, str):
            raise TypeError(f"tool_policies must map tool names (str), got the key {name!r}")
        if not isinstance(policy, ToolPolicy):
            raise TypeError(
                f"tool_policies[{name!r}] must be a ToolPolicy, got {shown(policy)}; write for example "
                "ToolPolicy(ToolEffect.READ)"
            )
    check_names(tree, policies, "tool_policies", source_names)
    for agent in tree.llm_agents():
        for tool in static_tools(agent):
            if tool.name in policies and is_control_tool(tool):
                raise ValueError(
                    f"tool_policies has a policy for {tool.name!r}, which steers ADK itself and "
                    f"runs inside RunModel"
                )
    return dict(policies)


def checked_effect(effect: ToolEffect) -> ToolEffect:
    """The default effect.

    Raises:
        TypeError: It is no ToolEffect.
    """
    if not isinstance(effect, ToolEffect):
        raise TypeError(f"default_tool_effect must be a ToolEffect, got {shown(effect)}")
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


def checked_credential_service(
    service: BaseCredentialService | None,
) -> BaseCredentialService | None:
    """An optional credential service that keeps secrets elsewhere.

    Raises:
        TypeError: It is no credential service.
        ValueError: It keeps secrets in the session.
    """
    checked_service(service, BaseCredentialService, "credential_service")
    if isinstance(service, SessionStateCredentialService):
        raise ValueError(
            "credential_service is a SessionStateCredentialService, which keeps credentials in "
            "session state, and a durable session stores that; use a service that keeps them in a "
            "secret manager"
        )
    return service


def checked_service(service: Any, kind: type[Any], argument: str) -> Any:
    """An optional ADK service.

    Raises:
        TypeError: It is of another kind.
    """
    if service is not None and not isinstance(service, kind):
        raise TypeError(f"{argument} must be a {kind.__name__}, got {type(service).__name__}")
    return service
