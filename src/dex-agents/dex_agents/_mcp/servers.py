"""Where an MCP server is, and what of that must never be shown."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from dex_agents._arguments import (
    check_fields,
    check_name,
    check_text_mapping,
    check_texts,
    path_of,
    shown,
)

REDACTED = "***"
_SCRIPT_CHARACTERS = 200


@dataclass(frozen=True)
class StdioServer:
    """A server that runs as a child process and talks on its stdin and stdout.

    Attributes:
        command: The program.
        args: Its arguments.
        env: More environment variables; their values never show up in errors and logs.
        cwd: Its working folder; this process's by default.

    Raises:
        TypeError, ValueError: A value has the wrong type, or is no program or folder.
    """

    command: str
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None

    def __post_init__(self) -> None:
        check_name("StdioServer.command", self.command)
        check_texts("StdioServer.args", self.args)
        check_text_mapping("StdioServer.env", self.env)
        if self.cwd is not None:
            path_of("StdioServer.cwd", self.cwd)

    @property
    def place(self) -> str:
        """What errors call it: the program and its script, as arguments may hold secrets."""
        script = next(filter(self._is_file, self.args), "")
        if len(script) > _SCRIPT_CHARACTERS:
            script = f"...{script[-_SCRIPT_CHARACTERS:]}"
        return f"the program {self.command} {redacted(script, self.secrets)}".rstrip()

    def _is_file(self, argument: str) -> bool:
        return os.path.isfile(os.path.join(self.cwd or "", argument))

    @property
    def secrets(self) -> Collection[str]:
        """Texts that must not be shown."""
        return tuple(self.env.values())

    def transport(self) -> AbstractAsyncContextManager[Any]:
        """A new connection."""
        return stdio_client(
            StdioServerParameters(
                command=self.command, args=list(self.args), env=dict(self.env), cwd=self.cwd
            )
        )


@dataclass(frozen=True, repr=False)
class HttpServer:
    """A server that speaks streamable HTTP.

    Attributes:
        url: Its address. Whatever logs requests logs it, so it must not hold a secret.
        headers: Sent with every request; their values never show up in errors and logs.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: The address is none, or holds a user name or password.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"HttpServer({self.place!r})"

    def __post_init__(self) -> None:
        check_fields(self, {"url": str})
        check_text_mapping("HttpServer.headers", self.headers)
        for name, value in self.headers.items():
            if not name.isprintable() or not value.isprintable():
                raise ValueError(
                    "HttpServer.headers must be of one line of printable text each; look at "
                    f"{shown(name)}"
                )
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("HttpServer.url must be an http or https address with a host")
        if parts.username is not None or parts.password is not None:
            raise ValueError(
                "HttpServer.url holds a user name or password, which logs would show; put an "
                "Authorization header into headers instead"
            )

    @property
    def place(self) -> str:
        """What errors call it."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}{parts.path}"

    @property
    def secrets(self) -> Collection[str]:
        """Texts that must not be shown."""
        found = list(self.headers.values())
        for value in self.headers.values():
            scheme, _, token = value.partition(" ")
            if token and scheme.lower() in ("bearer", "basic", "token"):
                found.append(token)
        if query := urlsplit(self.url).query:
            found.append(query)
        return found

    @asynccontextmanager
    async def transport(self) -> AsyncIterator[Any]:
        """A new connection."""
        async with (
            create_mcp_http_client(headers=dict(self.headers)) as client,
            streamable_http_client(self.url, http_client=client) as streams,
        ):
            yield streams


McpServer = StdioServer | HttpServer


def redacted(text: str, secrets: Collection[str]) -> str:
    """The text without any of the secrets."""
    # The longest first: one secret may be part of another.
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    return text
