"""The tools of the differential suite: real ones for sessions, record responses for plain ADK.

What a tool does follows from its kind and the last digit of its argument, so that both sides know
it: a result that is no dict, an error, an exception, a rejection, changed arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from google.adk.tools.base_tool import BaseTool
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext

from dex_agents import (
    OUTCOME_UNKNOWN_TOOL_RESULT,
    PendingInterrupt,
    ToolEffect,
    ToolExecutionError,
    ToolPolicy,
)
from dex_agents.testing import Approve, Reject, Reply, UserAnswer
from support.tree_oracle import Scripts
from support.waiting_trees import ANSWER

KINDS = ("read", "put", "charge", "ask", "job", "confirm")
EFFECTS = {
    "read": ToolPolicy(ToolEffect.READ),
    "put": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE),
    "charge": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False),
    "ask": ToolPolicy(ToolEffect.UNCLASSIFIED),
    "job": ToolPolicy(ToolEffect.READ),
    "confirm": ToolPolicy(ToolEffect.READ),
}
"""Kinds of tools. ``job`` is long-running, ``confirm`` asks for an approval by itself."""

Ran = Callable[..., int]
"""``SideWorld.ran_in``: notes an execution; returns how many the call has had, this one included."""


def kinds_of(agent: str, scripts: Scripts) -> list[str]:
    """Kinds of tools that an agent's model calls."""
    steps = (step if isinstance(step, list) else [step] for step in scripts[agent])
    parts = [part for step in steps for part in step if not isinstance(part, Exception)]
    names = {part.function_call.name for part in parts if part.function_call}
    return [kind for kind in KINDS if f"{kind}_{agent}" in names]


def policies_of(scripts: Scripts) -> dict[str, ToolPolicy]:
    """Of all tools that the models call."""
    return {
        f"{kind}_{agent}": EFFECTS[kind] for agent in scripts for kind in kinds_of(agent, scripts)
    }


def executions(kind: str, x: str) -> int:
    """How often a call runs when nothing disturbs it."""
    return 2 if kind in ("read", "put") and x.endswith("6") else 1


def answer(interrupt: PendingInterrupt) -> UserAnswer:
    """What the user of a session answers."""
    if interrupt.kind == "input":
        return Reply(ANSWER)
    x = str(interrupt.arguments["x"])
    if interrupt.kind == "long_running":
        return Reply({"done": x})
    if interrupt.tool_name.startswith("ask_") and x.endswith("9"):
        return Reject(f"not {x}")
    if interrupt.tool_name.startswith("ask_") and x.endswith("4"):
        return Approve(arguments={"x": f"{x}1"})
    return Approve()


def _effect(name: str, x: str, context: ToolContext) -> Any:
    context.state[f"{name}_state"] = f"{x}!"
    context.state["temp:last"] = name
    return [x, None] if x.endswith("7") else {"value": f"{name}({x})"}


def session_tool(kind: str, agent: str, ran: Ran) -> BaseTool:
    """The tool as an application writes it."""
    name = f"{kind}_{agent}"

    def run(x: str, tool_context: ToolContext) -> Any:
        if kind == "confirm" and tool_context.tool_confirmation is None:
            tool_context.request_confirmation(hint=f"Really {x}?")
            return {"status": "pending"}
        count = ran(tool_context, name, x=x)
        if x.endswith("8"):
            raise ToolExecutionError(f"no {x}")
        if x.endswith("6") and (kind == "charge" or count < executions(kind, x)):
            raise ValueError(f"broken {x}")
        return _effect(name, x, tool_context)

    return _tool(kind, name, run)


def plain_tool(kind: str, agent: str, ran: Ran, replaced: Mapping[str, Any]) -> BaseTool:
    """What stands for it in plain ADK: a function that returns the response of the call's record.

    Args:
        replaced: Responses by call id of the calls that a kill has changed.
    """
    name = f"{kind}_{agent}"

    def run(x: str, tool_context: ToolContext) -> Any:
        if (call_id := tool_context.function_call_id or "") in replaced:
            return replaced[call_id]
        if kind == "ask" and x.endswith("9"):
            return {"error": f"not {x}"}
        is_edited = kind == "ask" and x.endswith("4")
        x = f"{x}1" if is_edited else x
        ran(tool_context, name, x=x)
        if x.endswith("8"):
            return {"error": f"The tool call failed: no {x}"}
        if x.endswith("6") and kind == "charge":
            return {"error": OUTCOME_UNKNOWN_TOOL_RESULT}
        result = _effect(name, x, tool_context)
        if kind == "job":
            return {"done": x}
        return {**result, "approved_with_arguments": {"x": x}} if is_edited else result

    tool = _tool(kind, name, run)
    tool.is_long_running = False
    return tool


def _tool(kind: str, name: str, run: Callable[..., Any]) -> BaseTool:
    run.__name__ = name
    run.__doc__ = f"Tool {name}."
    return LongRunningFunctionTool(run) if kind == "job" else FunctionTool(run)
