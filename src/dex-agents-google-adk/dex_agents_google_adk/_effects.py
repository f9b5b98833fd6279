"""Which effect a tool has and whether a call needs approval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from google.adk.agents.llm.task._finish_task_tool import FinishTaskTool
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.tools.agent_tool import _SingleTurnAgentTool, _TaskAgentTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.exit_loop_tool import exit_loop
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.load_artifacts_tool import LoadArtifactsTool
from google.adk.tools.load_memory_tool import LoadMemoryTool
from google.adk.tools.preload_memory_tool import PreloadMemoryTool
from google.adk.tools.set_model_response_tool import SetModelResponseTool
from google.adk.tools.transfer_to_agent_tool import TransferToAgentTool
from google.adk.workflow._base_node import BaseNode, _walk_static_nodes
from google.adk.workflow._tool_node import _ToolNode

from dex_agents._effects import ToolEffect, ToolPolicy
from dex_agents_google_adk._adk_compat import node_behind

_CARE = {
    ToolEffect.READ: 0,
    ToolEffect.IDEMPOTENT_WRITE: 1,
    ToolEffect.NON_IDEMPOTENT_WRITE: 2,
    ToolEffect.UNCLASSIFIED: 2,
}
_READ_TOOLS = (LoadArtifactsTool, LoadMemoryTool, PreloadMemoryTool)
_CONTROL_TOOLS = (
    SetModelResponseTool,
    TransferToAgentTool,
    FinishTaskTool,
    _SingleTurnAgentTool,
    _TaskAgentTool,
)

CONTROL_TOOL_NAMES = ("transfer_to_agent", "exit_loop", "set_model_response", "finish_task")


@dataclass(frozen=True)
class ResolvedPolicy:
    """The decision for one tool."""

    effect: ToolEffect
    requires_approval: bool


class PolicyResolver:
    """Policy by name, then what ADK says about the tool, then the default.

    Args:
        policies: Policies by tool name.
        default_effect: Effect of a tool that nothing is known about.
    """

    def __init__(self, policies: Mapping[str, ToolPolicy], default_effect: ToolEffect) -> None:
        self._policies = dict(policies)
        self._default_effect = default_effect

    def resolve(self, tool: BaseTool) -> ResolvedPolicy:
        """Effect and approval of a tool's calls."""
        policy = self._policies.get(tool.name)
        if policy is None:
            policy = ToolPolicy(_known_effect(tool) or self._default_effect)
        return ResolvedPolicy(policy.effect, policy.needs_approval)

    async def writing_tool_of(self, root: BaseNode, context: ReadonlyContext) -> str | None:
        """Name of a tool that is not ``read``, of the agents and nodes from ``root`` on."""
        for node in _walk_static_nodes(root):
            for inner in await _tools_of(node, context):
                if is_control_tool(inner) or inner._get_declaration() is None:
                    continue
                if self.resolve(inner).effect is not ToolEffect.READ:
                    return inner.name
                behind = node_behind(inner)
                if behind is not None and (name := await self.writing_tool_of(behind, context)):
                    return name
        return None


async def _tools_of(node: BaseNode, context: ReadonlyContext) -> Sequence[BaseTool]:
    if isinstance(node, _ToolNode):
        return [node.tool]
    return await node.canonical_tools(context) if isinstance(node, LlmAgent) else []


def needs_more_care(now: ToolEffect, then: ToolEffect) -> bool:
    """Whether a call that is repeated and told as its effect of then says may do harm now."""
    return _CARE[now] > _CARE[then]


def is_control_tool(tool: BaseTool) -> bool:
    """Whether the tool only steers ADK's invocation, so that it runs inside ``RunModel``."""
    if isinstance(tool, _CONTROL_TOOLS):
        return True
    return isinstance(tool, FunctionTool) and tool.func is exit_loop


def is_finishing_tool(tool: BaseTool | None) -> bool:
    """Whether a call finishes the task of the agent that makes it."""
    return isinstance(tool, FinishTaskTool)


def is_task_tool(tool: BaseTool | None) -> bool:
    """Whether a call hands a task to a sub-agent, which ADK runs after the response's other calls."""
    return isinstance(tool, _TaskAgentTool)


def is_inline_agent_tool(tool: BaseTool) -> bool:
    """Whether a call runs a ``single_turn`` sub-agent inside the calling agent's own run."""
    return isinstance(tool, _SingleTurnAgentTool)


def _known_effect(tool: BaseTool) -> ToolEffect | None:
    if isinstance(tool, _READ_TOOLS):
        return ToolEffect.READ
    # MCP is optional in ADK; only its tools have this attribute. mcp 2 renamed the hints.
    annotations = getattr(getattr(tool, "raw_mcp_tool", None), "annotations", None)
    if _hint(annotations, "readOnlyHint", "read_only_hint"):
        return ToolEffect.READ
    if _hint(annotations, "idempotentHint", "idempotent_hint"):
        return ToolEffect.IDEMPOTENT_WRITE
    return None


def _hint(annotations: object, *names: str) -> bool:
    return any(getattr(annotations, name, None) is True for name in names)
