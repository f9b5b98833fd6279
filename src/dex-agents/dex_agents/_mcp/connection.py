"""One connection to an MCP server for all sessions of a process.

The client library ties a connection to the task that opened it: it must be closed there, too. So a
task of its own holds it open, and everybody else only sends requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from mcp import Client, MCPError
from mcp_types import CONNECTION_CLOSED

from dex_agents._mcp.ended import may_say_ended
from dex_agents._mcp.servers import McpServer, redacted

_LOGGER = logging.getLogger("dex_agents")
_T = TypeVar("_T")
# A second try may time out, too, and the client library ends a server that stays within 4 s.
_UNWIND_S = 20.0


class McpConnectionError(ConnectionError):
    """The server cannot be reached, or the connection to it broke."""


@dataclass(eq=False)
class _Opened:
    """One opening of the connection. It closes when it is told to."""

    client: asyncio.Future[Client]
    told_to_close: asyncio.Event = field(default_factory=asyncio.Event)
    open_requests: int = 0
    is_left: bool = False  # no new requests; what is on its way may still be answered

    def close_if_unused(self) -> None:
        if self.is_left and not self.open_requests:
            self.told_to_close.set()


class McpConnection:
    """Connects when it is first needed, and again after the connection broke.

    It belongs to one event loop. When the loop ends, so does the task that holds the connection,
    and with it the server's process.

    Args:
        server: Where the server is.
        connect_timeout_s: Longest time until it has answered for the first time.
    """

    def __init__(self, server: McpServer, connect_timeout_s: float) -> None:
        self._server = server
        self._connect_timeout_s = connect_timeout_s
        self._opened: _Opened | None = None
        self._asking = asyncio.Lock()  # one at a time asks whether the session has ended
        self._holders: set[asyncio.Task[None]] = set()  # this one, and those that still clean up

    async def connect(self) -> None:
        """Be connected.

        Raises:
            McpConnectionError: The server did not answer in time, or refused.
        """
        await self._open()

    async def request(self, send: Callable[[Client], Awaitable[_T]]) -> _T:
        """Send one request; once more if the server has ended the session, and so did nothing.

        Raises:
            McpConnectionError: There is no connection; nothing was sent.
            MCPError: The server's error, or that the connection broke.
        """
        opened = await self._open()
        try:
            return await self._send(opened, send)
        except MCPError as error:
            if not (may_say_ended(error.code, error.message) and await self._has_ended(opened)):
                raise
        return await self._send(await self._open(), send)

    async def _open(self) -> _Opened:
        opened = self._opened
        if opened is None:
            opened = self._opened = _Opened(asyncio.get_running_loop().create_future())
            holder = asyncio.create_task(self._hold(opened), name=f"mcp {self._server.place}")
            self._holders.add(holder)
            holder.add_done_callback(self._holders.discard)
        # Not cancelled with its caller: one that gives up must not take the connection from the
        # others. Bounded on top of the holder's own limit, which a library may swallow.
        await asyncio.wait({opened.client}, timeout=self._connect_timeout_s + _UNWIND_S)
        if not opened.client.done():
            self._close(opened)
            raise McpConnectionError(f"{self._server.place} cannot be reached: it does not answer")
        opened.client.result()
        return opened

    async def _send(self, opened: _Opened, send: Callable[[Client], Awaitable[_T]]) -> _T:
        opened.open_requests += 1
        try:
            return await send(opened.client.result())
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                self._close(opened)
            raise
        finally:
            opened.open_requests -= 1
            opened.close_if_unused()

    async def _has_ended(self, opened: _Opened) -> bool:
        """Whether the session has, or a tool has only said something like that of its own."""
        async with self._asking:
            if not opened.is_left:
                try:
                    await opened.client.result().list_tools()
                    return False
                except MCPError as error:
                    if not may_say_ended(error.code, error.message):
                        return False
                self._leave(opened)
            return True

    def drop_if_idle(self) -> None:
        """Connect anew next time, unless a request of somebody else is on its way."""
        if self._opened is not None and not self._opened.open_requests:
            self._close(self._opened)

    async def close(self) -> None:
        """Close the connection and wait for the end of the server's process.

        It is opened again when it is needed.
        """
        if self._opened is not None:
            self._close(self._opened)
        if self._holders:
            await asyncio.wait(set(self._holders))

    def _leave(self, opened: _Opened) -> None:
        """The next request opens anew; those on their way there are not cut off."""
        opened.is_left = True
        if self._opened is opened:
            self._opened = None
        opened.close_if_unused()

    def _close(self, opened: _Opened) -> None:
        self._leave(opened)
        opened.told_to_close.set()

    async def _hold(self, opened: _Opened) -> None:
        client = opened.client
        try:
            try:
                await self._connect(opened)
            except (Exception, BaseExceptionGroup) as error:
                if client.done() or isinstance(error, TimeoutError):
                    raise
                # Nothing was sent yet. A process that a busy Worker forks may die before it runs.
                await self._connect(opened)
        except asyncio.CancelledError:
            _fail(client, McpConnectionError("the connection was closed"))
            raise
        except (Exception, BaseExceptionGroup) as error:
            why = self._explain(error)
            _LOGGER.warning("no connection to %s: %s", self._server.place, why)
            _fail(client, McpConnectionError(f"{self._server.place} cannot be reached: {why}"))
        finally:
            self._close(opened)

    async def _connect(self, opened: _Opened) -> None:
        async with asyncio.timeout(self._connect_timeout_s) as limit:
            # cache=None: what the server lists now is what counts.
            async with Client(self._server.transport(), cache=None) as connected:
                limit.reschedule(None)
                opened.client.set_result(connected)
                await opened.told_to_close.wait()

    def _explain(self, error: BaseException) -> str:
        if isinstance(error, TimeoutError):
            return f"it did not answer within {self._connect_timeout_s:g} s"
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return redacted(f"{type(error).__name__}: {error}", self._server.secrets)


def _fail(client: asyncio.Future[Client], error: Exception) -> None:
    if not client.done():
        client.set_exception(error)
        client.exception()  # perhaps nobody waits for it any more
