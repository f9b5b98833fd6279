"""Let ADK see that an MCP server has ended the session, so that the next use opens another.

ADK drops a session from its pool, and lists tools once more, when the error says "Session terminated".
Servers of both official SDKs say "Session not found", and a client of MCP 2 hands that on: the dead
session stays in the pool for ever. What becomes of the call that was refused so, ``mcp_errors`` decides.
ADK closes the connection under other calls of that session, too; those end as ones that broke.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import isfunction
from typing import Any

from dex_agents._mcp.ended import may_say_ended
from dex_agents_google_adk._adk_workarounds._patch import Patch, install

_MODULE = "google.adk.tools.mcp_tool.mcp_session_manager"


def _guarded(reports: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def guarded(exc: Any) -> bool:
        return reports(exc) or may_say_ended(exc.error.code, exc.error.message)

    return guarded


def patches() -> tuple[Patch, ...]:
    """The guard; none while nobody has made an ``McpToolset``, as MCP is optional in ADK."""
    module = sys.modules.get(_MODULE)
    if module is None:
        return ()
    return (Patch((module,), "_reports_session_terminated", ("exc",), isfunction, _guarded),)


def apply() -> bool:
    """Install the guard; true if it stands or is not needed."""
    return install(
        patches(),
        "ADK's way to see that an MCP server has ended a session has changed; the tools of an "
        "McpToolset may fail until the Worker is started anew",
    )
