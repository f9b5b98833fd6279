"""An MCP server as a tool source."""

from __future__ import annotations

import asyncio
import re
import weakref
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Self, cast

from mcp import InputRequiredRoundsExceededError, MCPError
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT, RequestParamsMeta, Tool

from dex_agents._arguments import check_instance, check_name, check_texts, shown
from dex_agents._contract import DeferredToolExecution, Json, ToolExecutionResult
from dex_agents._effects import ToolEffect, ToolPolicy
from dex_agents._errors import (
    ToolExecutionError,
    ToolNotStartedError,
    ToolOutcomeUnknownError,
)
from dex_agents._mcp.connection import McpConnection, McpConnectionError
from dex_agents._mcp.results import error_text, to_result
from dex_agents._mcp.servers import HttpServer, McpServer, StdioServer, redacted
from dex_agents._media.reference import MediaStore
from dex_agents._session.options import check_duration
from dex_agents._tool_sources.contract import (
    SOURCE_NAME_CHARACTERS,
    SourceTool,
    SourceToolCall,
    ToolCallStepOptions,
)

IDEMPOTENCY_KEY_META = "dex-agents/idempotency-key"
"""Where a call's ``_meta`` has its idempotency key."""
_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_MAX_PAGES = 100


class McpToolSource:
    """Offers the tools of one MCP server. All sessions of a process share one connection to it.

    The effect of a tool is that of its policy here, else what its hints say (``readOnlyHint``:
    read, ``idempotentHint``: idempotent write), else ``default_tool_effect``. Hints are the server's
    word: give policies for a server that you do not trust. Writes keep the model's order.

    Sampling, elicitation and roots are off. The connection ends with the event loop, and the
    server's process with it; :meth:`close` ends it earlier.

    Args:
        name: The source's name, unique within a Flow; keep it stable.
        server: Where the server is.
        tool_policies: Policies by the tool's own name.
        default_tool_effect: Effect of a tool without a policy and hints.
        tools: Names of the tools to offer; all by default. What is named here is checked against
            other names when the Flow is built.
        tool_name_prefix: Put before each name that the model sees.
        connect_timeout: Longest time until the server has answered for the first time; whole
            seconds.
        list_timeout: Longest time of one listing; whole seconds.
        call_timeout: Longest time of one attempt of a call; by default the session's.
        media_store: Where images of results go; without one they are left out.

    Raises:
        TypeError, ValueError: An argument is wrong; the text names it.
    """

    def __init__(
        self,
        name: str,
        server: McpServer,
        *,
        tool_policies: Mapping[str, ToolPolicy] | None = None,
        default_tool_effect: ToolEffect = ToolEffect.UNCLASSIFIED,
        tools: Collection[str] | None = None,
        tool_name_prefix: str = "",
        connect_timeout: timedelta = timedelta(seconds=10),
        list_timeout: timedelta = timedelta(seconds=10),
        call_timeout: timedelta | None = None,
        media_store: MediaStore | None = None,
    ) -> None:
        if not isinstance(server, StdioServer | HttpServer):
            raise TypeError(
                f"server must be a StdioServer or HttpServer, got {type(server).__name__}"
            )
        check_name("name", name, most=SOURCE_NAME_CHARACTERS)
        if tools is not None:
            check_texts("tools", tools)
        check_instance("tool_name_prefix", tool_name_prefix, str)
        if tool_name_prefix and not _PREFIX.fullmatch(tool_name_prefix):
            raise ValueError(
                "tool_name_prefix must be at most 64 letters, digits, _ and -, as models take them in "
                f"names of tools, got {shown(tool_name_prefix)}"
            )
        if media_store is not None:
            check_instance("media_store", media_store, MediaStore, "such as S3MediaStore")
        if tool_policies is not None:
            check_instance("tool_policies", tool_policies, Mapping, "of tool names to ToolPolicy")
        for tool, policy in (tool_policies or {}).items():
            if not isinstance(policy, ToolPolicy):
                raise TypeError(
                    f"tool_policies[{tool!r}] must be a ToolPolicy, got {shown(policy)}"
                )
        if tools is not None and (unknown := set(tool_policies or ()) - set(tools)):
            raise ValueError(
                f"tool_policies names {', '.join(map(repr, sorted(unknown)))}, which tools does "
                "not offer"
            )
        if not isinstance(default_tool_effect, ToolEffect):
            raise TypeError(
                f"default_tool_effect must be a ToolEffect, got {shown(default_tool_effect)}"
            )
        check_duration("connect_timeout", connect_timeout)
        check_duration("list_timeout", list_timeout)
        if call_timeout is not None:
            check_duration("call_timeout", call_timeout)
        self._name = name
        self._server = server
        self._policies = dict(tool_policies or {})
        self._default_effect = default_tool_effect
        self._selected = None if tools is None else frozenset(tools)
        self._prefix = tool_name_prefix
        self._connect_timeout_s = connect_timeout.total_seconds()
        self._list_timeout_s = list_timeout.total_seconds()
        self._step_options = ToolCallStepOptions(timeout=call_timeout)
        self._store = media_store
        self._known: dict[str, Tool] = {}  # newest form by name, as this process has listed it
        self._connections: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, McpConnection] = (
            weakref.WeakKeyDictionary()
        )
        self._listing: asyncio.Task[list[Tool]] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close this loop's connection and end the server's process."""
        connection = self._connections.pop(asyncio.get_running_loop(), None)
        if connection is not None:
            await connection.close()

    @property
    def source_name(self) -> str:
        """See :class:`dex_agents.ToolSource`."""
        return self._name

    @property
    def declared_tool_names(self) -> Collection[str]:
        """See :class:`dex_agents.ToolSource`."""
        return tuple(self._prefix + name for name in sorted(self._selected or ()))

    async def list_tools(self) -> Sequence[SourceTool]:
        """See :class:`dex_agents.ToolSource`.

        Sessions that ask at the same time share one request.
        """
        loop = asyncio.get_running_loop()
        if self._listing is None or self._listing.done() or self._listing.get_loop() is not loop:
            self._listing = loop.create_task(self._list())
        tools = await asyncio.shield(self._listing)
        return [self._shown(tool) for tool in tools]

    async def _list(self) -> list[Tool]:
        connection = self._connection()
        try:
            async with asyncio.timeout(self._connect_timeout_s + self._list_timeout_s):
                found = await self._list_pages(connection)
        except TimeoutError:
            connection.drop_if_idle()
            raise McpConnectionError(
                f"{self._server.place} did not list its tools within {self._list_timeout_s:g} s"
            ) from None
        except MCPError as error:
            if error.code == REQUEST_TIMEOUT:
                connection.drop_if_idle()
            raise McpConnectionError(
                f"{self._server.place} could not list its tools: {self._redacted(error)}"
            ) from None
        except McpConnectionError:
            raise
        except Exception as error:
            raise McpConnectionError(
                f"{self._server.place} could not list its tools: {self._redacted(error)}"
            ) from None
        selected = self._selected
        tools = [tool for tool in found if selected is None or tool.name in selected]
        self._known.update((tool.name, tool) for tool in tools)
        return tools

    async def _list_pages(self, connection: McpConnection) -> list[Tool]:
        found: list[Tool] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await connection.request(lambda client: client.list_tools(cursor=cursor))  # noqa: B023
            found += page.tools
            cursor = page.next_cursor
            if not cursor:
                return found
        raise McpConnectionError(
            f"{self._server.place} lists tools on more than {_MAX_PAGES} pages"
        )

    def cached_tools(self) -> Sequence[SourceTool]:
        """See :class:`dex_agents.ToolSource`."""
        return [self._shown(tool) for tool in self._known.values()]

    def build_tool_call(self, tool_name: str, arguments: Mapping[str, Json]) -> SourceToolCall:
        """See :class:`dex_agents.ToolSource`."""
        policy = self._policies.get(tool_name.removeprefix(self._prefix))
        effect = policy.effect if policy is not None else self._hinted_effect(tool_name)
        return SourceToolCall(
            effect,
            requires_approval=policy.requires_approval if policy is not None else None,
            is_ordered_write=effect is not ToolEffect.READ,
        )

    def _hinted_effect(self, tool_name: str) -> ToolEffect:
        tool = self._known.get(tool_name.removeprefix(self._prefix))
        hints = tool.annotations if tool is not None else None
        if hints is not None and hints.read_only_hint:
            return ToolEffect.READ
        if hints is not None and hints.idempotent_hint:
            return ToolEffect.IDEMPOTENT_WRITE
        return self._default_effect

    def tool_call_step_options(self, tool_name: str) -> ToolCallStepOptions:
        """See :class:`dex_agents.ToolSource`."""
        return self._step_options

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        """See :class:`dex_agents.ToolSource`."""
        connection = self._connection()
        name = call.tool_name.removeprefix(self._prefix)
        try:
            await connection.connect()
        except McpConnectionError as error:
            if call.effect.maximum_attempts > 1:
                raise  # the next attempt may find the server
            raise ToolNotStartedError(str(error)) from None
        try:
            result = await connection.request(
                lambda client: client.call_tool(
                    name,
                    dict(call.arguments),
                    meta=cast(RequestParamsMeta, {IDEMPOTENCY_KEY_META: call.idempotency_key}),
                )
            )
        except InputRequiredRoundsExceededError:
            raise ToolOutcomeUnknownError(
                f"{name} asks for more input, which a tool source cannot give"
            ) from None
        except MCPError as error:
            text = self._redacted(error)
            if error.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT):
                raise McpConnectionError(f"{self._server.place}: {text}") from None
            raise ToolExecutionError(text) from None
        except McpConnectionError:
            raise
        except Exception as error:
            # Whatever the client library raises may show where it connects to and how.
            raise McpConnectionError(f"{self._server.place}: {self._redacted(error)}") from None
        if result.is_error:
            raise ToolExecutionError(redacted(error_text(result), self._server.secrets))
        return await to_result(result, self._store, call.effect)

    def _connection(self) -> McpConnection:
        loop = asyncio.get_running_loop()
        connection = self._connections.get(loop)
        if connection is None:
            connection = McpConnection(self._server, self._connect_timeout_s)
            self._connections[loop] = connection
        return connection

    def _shown(self, tool: Tool) -> SourceTool:
        return SourceTool(self._prefix + tool.name, tool.description or "", tool.input_schema)

    def _redacted(self, error: Exception) -> str:
        text = str(error) if isinstance(error, MCPError) else f"{type(error).__name__}: {error}"
        return redacted(text, self._server.secrets)
