"""ADK's ``AgentTool`` answers with a text that looks like any other when its agent stops to wait.

The agent's session is gone by then, so nobody can go on with it. The model should read that as a
failure, with what to do about it.
"""

from __future__ import annotations

from typing import Any

from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool

from dex_agents._errors import ToolExecutionError

_PAUSED = "Error: agent {!r} stopped waiting on unresolved"


def check_result(tool: BaseTool, result: Any) -> None:
    """Refuse the result of an agent that stopped to wait.

    Raises:
        ToolExecutionError: It did.
    """
    if not isinstance(tool, AgentTool) or not isinstance(result, str):
        return
    if result.startswith(_PAUSED.format(tool.agent.name)):
        raise ToolExecutionError(
            f"The agent {tool.agent.name!r} stopped to wait for an approval or an answer, which "
            f"an AgentTool cannot pass on; what it had done by then is done. Make it a sub-agent, "
            f"for example with mode='single_turn', if it must wait."
        )
