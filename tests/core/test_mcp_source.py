"""An MCP server as a tool source, against real servers over both transports."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from mcp import Client
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from dex_agents import (
    DeferredToolExecution,
    LocalDirectoryMediaStore,
    MediaStoreError,
    ToolEffect,
    ToolExecutionError,
    ToolNotStartedError,
    ToolPolicy,
    ToolSource,
)
from dex_agents._mcp import connection
from dex_agents._mcp.results import error_text, to_result
from dex_agents.mcp import HttpServer, McpToolSource, StdioServer
from dex_agents.testing import Ledger
from support.polling import until
from support.ports import free_port, wait_for_port

SERVER = Path(__file__).parents[1] / "support" / "mcp_server.py"
SECRET = "s3cret-token"
PATH = os.pathsep.join(p or os.getcwd() for p in sys.path)
WRITE = ToolEffect.NON_IDEMPOTENT_WRITE
NO_SERVER: Any = "http://x"
SOON = timedelta(seconds=1)


def stdio(folder: Path) -> StdioServer:
    env = {"PYTHONPATH": PATH, "NOTES_TOKEN": SECRET}
    return StdioServer(sys.executable, [str(SERVER), str(folder)], env=env)


def execution(name: str, effect: ToolEffect = ToolEffect.READ, **arguments: Any) -> Any:
    return DeferredToolExecution(
        "s", "t1", "c1", name, arguments, effect, "root", "CallTool-1", 1, "s/t1/c1"
    )


_OTHERS: set[psutil.Process] = set()


@pytest.fixture(autouse=True)
def others() -> None:
    """Child processes of tests that ran before, such as the Node that reads UI streams."""
    _OTHERS.clear()
    _OTHERS.update(psutil.Process().children(recursive=True))


def children() -> list[psutil.Process]:
    """Child processes that this test started."""
    return [p for p in psutil.Process().children(recursive=True) if p not in _OTHERS]


async def no_children() -> None:
    """Until every child process is gone."""
    await until(lambda: not children())


@contextlib.asynccontextmanager
async def http_server(folder: Path, port: int) -> AsyncIterator[HttpServer]:
    command = [sys.executable, str(SERVER), str(folder), str(port)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": PATH})
    try:
        await wait_for_port(port)
        yield HttpServer(f"http://127.0.0.1:{port}/mcp", {"Authorization": f"Bearer {SECRET}"})
    finally:
        process.kill()
        process.wait()


@pytest.fixture(params=["stdio", "http"])
async def source(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[McpToolSource]:
    store = LocalDirectoryMediaStore(tmp_path / "media")
    async with contextlib.AsyncExitStack() as stack:
        server: Any = stdio(tmp_path)
        if request.param == "http":
            server = await stack.enter_async_context(http_server(tmp_path, free_port()))
        yield await stack.enter_async_context(McpToolSource("notes", server, media_store=store))
    await no_children()


async def test_lists_and_calls(source: McpToolSource, tmp_path: Path) -> None:
    assert isinstance(source, ToolSource)
    listed = {tool.name: tool for tool in await source.list_tools()}
    assert list(source.cached_tools()) == list(listed.values())
    assert listed["read"].description == "Read a note."
    assert listed["read"].input_schema["required"] == ["text"]
    effects = {name: source.build_tool_call(name, {}).effect for name in listed}
    assert effects["read"] is effects["both"] is ToolEffect.READ
    assert effects["put"] is ToolEffect.IDEMPOTENT_WRITE
    assert effects["add"] is ToolEffect.UNCLASSIFIED
    results = await asyncio.gather(
        *(
            source.execute_deferred_tool_call(execution("read", text=str(number)))
            for number in range(20)
        )
    )
    assert [r.output for r in results] == [{"result": f"read {n}"} for n in range(20)]
    result = await source.execute_deferred_tool_call(execution("structured", text="abc"))
    assert result.output == {"text": "abc", "size": 3}
    drawn = await source.execute_deferred_tool_call(execution("draw"))
    assert [image.mime_type for image in drawn.images] == ["image/png"]
    with pytest.raises(ToolExecutionError, match=r"fail: no \*\*\*$"):
        await source.execute_deferred_tool_call(execution("fail", text="no"))
    with pytest.raises(ToolExecutionError, match="Unknown tool"):
        await source.execute_deferred_tool_call(execution("nothing"))
    key = await source.execute_deferred_tool_call(execution("key"))
    assert key.output == {"result": "s/t1/c1"}
    assert Ledger(tmp_path / "ledger.jsonl").count("started") == 1


async def test_what_a_result_becomes(tmp_path: Path) -> None:
    store = LocalDirectoryMediaStore(tmp_path)
    png = base64.b64encode(b"\x89PNG\r\n\x1a\nnotes").decode()
    svg = base64.b64encode(b"<svg/>").decode()
    resource = TextResourceContents(uri="file:///a", text="kept")
    blob = BlobResourceContents(uri="file:///b", blob=png)
    content: list[Any] = [
        TextContent(text="said"),
        ImageContent(data=png, mime_type="image/png"),
        ImageContent(data=svg, mime_type="image/svg+xml"),
        ImageContent(data="no base64!", mime_type="image/png"),
        AudioContent(data=png, mime_type="audio/wav"),
        EmbeddedResource(resource=resource),
        EmbeddedResource(resource=blob),
        ResourceLink(uri="file:///c", name="c"),
    ]
    # The call has run: what cannot be shown is named and makes it no failure.
    result = await to_result(CallToolResult(content=content), store, ToolEffect.READ)
    assert [image.mime_type for image in result.images] == ["image/png"]
    assert str(result.output).splitlines() == [
        "said",
        "kept",
        "(resource file:///b was left out)",
        "(link to file:///c)",
    ]
    assert list(result.not_stored) == [
        "image of type image/svg+xml was left out: the data is no image of a known type; PNG, JPEG, "
        "GIF, WebP, HEIC, HEIF and AVIF are",
        "image of type image/png was left out: it is no base64",
        "audio of type audio/wav was left out",
    ]
    without = await to_result(CallToolResult(content=content), None, ToolEffect.READ)
    assert without.images == []
    assert list(without.not_stored).count("image of type image/png was left out") == 2
    value = {"a": 0}
    structured = CallToolResult(content=content[:3], structured_content=value)
    result = await to_result(structured, store, ToolEffect.READ)
    assert (result.output, len(result.images), len(result.not_stored)) == (value, 1, 1)
    assert error_text(CallToolResult(content=content[1:2], is_error=True)) == (
        "the MCP server reported a failure without a text"
    )


async def test_a_store_that_fails_never_makes_a_write_unknown(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    store = LocalDirectoryMediaStore(tmp_path / "file")
    png = base64.b64encode(b"\x89PNG\r\n\x1a\nnotes").decode()
    drawn = CallToolResult(content=[ImageContent(data=png, mime_type="image/png")])
    written = await to_result(drawn, store, ToolEffect.NON_IDEMPOTENT_WRITE)
    assert written.images == []
    assert list(written.not_stored) == [
        "image of type image/png was left out: it could not be stored (MediaStoreError)"
    ]
    with pytest.raises(MediaStoreError):  # the next attempt may be luckier
        await to_result(drawn, store, ToolEffect.IDEMPOTENT_WRITE)


async def test_one_connection_and_one_listing_for_those_who_ask_together(tmp_path: Path) -> None:
    async with McpToolSource("notes", stdio(tmp_path)) as source:
        listings = await asyncio.gather(*(source.list_tools() for _ in range(20)))
        assert all(listing == listings[0] for listing in listings)
        assert len(children()) == 1
    await no_children()


@pytest.mark.long
async def test_a_server_that_dies_is_started_again(tmp_path: Path) -> None:
    async with McpToolSource("notes", stdio(tmp_path)) as source:
        hanging = asyncio.create_task(
            source.execute_deferred_tool_call(execution("hang", text="x"))
        )
        with pytest.raises(ConnectionError, match="Connection closed"):
            await source.execute_deferred_tool_call(execution("die", text="x"))
        with pytest.raises(ConnectionError, match="Connection closed"):
            await hanging
        result = await source.execute_deferred_tool_call(execution("read", text="x"))
        assert result.output == {"result": "read x"}
        assert Ledger(tmp_path / "ledger.jsonl").count("started") == 2
        assert len(children()) == 1
    await no_children()


async def test_a_server_that_dies_at_its_start_gets_a_second_chance(tmp_path: Path) -> None:
    (tmp_path / "stillborn").touch()
    async with McpToolSource("notes", stdio(tmp_path)) as source:
        assert await source.list_tools()
        assert not (tmp_path / "stillborn").exists()
    await no_children()


async def test_a_caller_that_gives_up_takes_nothing_from_the_others(tmp_path: Path) -> None:
    async with McpToolSource("notes", stdio(tmp_path)) as source:
        gives_up = asyncio.create_task(source.list_tools())
        stays = asyncio.create_task(source.list_tools())
        await asyncio.sleep(0)
        gives_up.cancel()
        assert await stays
        hanging = asyncio.create_task(
            source.execute_deferred_tool_call(execution("hang", text="x"))
        )
        ledger = Ledger(tmp_path / "ledger.jsonl")
        await until(lambda: ledger.count("hang"))
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        result = await source.execute_deferred_tool_call(execution("read", text="x"))
        assert result.output == {"result": "read x"}
        assert ledger.count("started") == 1
    await no_children()


@pytest.mark.long
async def test_a_silent_server_is_given_up_and_ended(tmp_path: Path) -> None:
    (tmp_path / "silent").touch()
    source = McpToolSource("notes", stdio(tmp_path), connect_timeout=SOON, list_timeout=SOON)
    start = time.monotonic()
    with pytest.raises(ConnectionError, match=r"did not (answer|list its tools) within 1 s"):
        await source.list_tools()
    assert time.monotonic() - start < 30
    await no_children()
    (tmp_path / "silent").unlink()
    async with McpToolSource("notes", stdio(tmp_path)) as source:
        assert await source.list_tools()


@pytest.mark.parametrize("kind", ["refused", "deaf", "no program"])
async def test_an_unreachable_server_is_bounded(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        if kind == "no program":
            server: Any = StdioServer(str(tmp_path / "none"), env={"TOKEN": SECRET})
        elif kind == "refused":
            address = f"http://127.0.0.1:{free_port()}/mcp?key={SECRET}"
            server = HttpServer(address, {"Authorization": f"Bearer {SECRET}"})
        else:
            deaf = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            server = HttpServer(f"http://127.0.0.1:{deaf.getsockname()[1]}/mcp")
        source = McpToolSource("notes", server, connect_timeout=SOON, list_timeout=SOON)
        with caplog.at_level(logging.WARNING):
            with pytest.raises(ConnectionError, match=r"cannot be reached|did not list") as caught:
                await source.list_tools()
            with pytest.raises(ToolNotStartedError):
                await source.execute_deferred_tool_call(execution("add", ToolEffect.UNCLASSIFIED))
            with pytest.raises(ConnectionError):
                await source.execute_deferred_tool_call(execution("read"))
        assert SECRET not in f"{caught.value} {caplog.text} {server!r}"
    await no_children()


@pytest.mark.long
async def test_an_http_server_that_goes_and_comes_back(tmp_path: Path) -> None:
    port = free_port()
    async with contextlib.AsyncExitStack() as stack:
        async with http_server(tmp_path, port) as server:
            source = McpToolSource("notes", server)
            stack.push_async_callback(source.close)
            assert await source.list_tools()
            hanging = asyncio.create_task(
                source.execute_deferred_tool_call(execution("hang", text="x"))
            )
            await until(lambda: Ledger(tmp_path / "ledger.jsonl").count("hang"))
        with pytest.raises(ConnectionError):
            await hanging
        with pytest.raises(ConnectionError, match="cannot be reached"):
            await source.list_tools()
        async with http_server(tmp_path, port):
            result = await source.execute_deferred_tool_call(execution("read", text="x"))
            assert result.output == {"result": "read x"}


async def test_a_session_that_the_server_has_ended_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does after a restart, or after half an hour in which a call waited for its approval."""
    # Servers of the older protocol have sessions.
    monkeypatch.setattr(connection, "Client", functools.partial(Client, mode="legacy"))
    port = free_port()
    ledger = Ledger(tmp_path / "ledger.jsonl")
    async with contextlib.AsyncExitStack() as stack:
        async with http_server(tmp_path, port) as server:
            source = McpToolSource("notes", server)
            stack.push_async_callback(source.close)
            assert await source.list_tools()
        async with http_server(tmp_path, port):
            for _ in range(2):
                # Asked together, each is sent once more.
                await asyncio.gather(
                    *(
                        source.execute_deferred_tool_call(execution("add", WRITE, text=str(number)))
                        for number in range(5)
                    ),
                    source.list_tools(),
                )
        assert [ledger.count("add", text=str(number)) for number in range(5)] == [2] * 5
        async with http_server(tmp_path, port):
            assert await source.list_tools()
            # A tool that only says so has run, and does not run again.
            with pytest.raises(ToolExecutionError, match="Session not found"):
                await source.execute_deferred_tool_call(execution("lost", WRITE, text="x"))
        assert ledger.count("lost") == 1


@pytest.mark.long
def test_the_loop_ends_the_servers_process(tmp_path: Path) -> None:
    """Without a ``close``: as when a Worker ends."""
    source = McpToolSource("notes", stdio(tmp_path))

    async def use() -> None:
        await source.list_tools()
        assert len(children()) == 1

    for _ in range(2):
        asyncio.run(use())
        assert children() == []


def test_names() -> None:
    server = StdioServer("none")
    source = McpToolSource("n", server, tools=["b", "a"], tool_name_prefix="n_")
    assert (source.source_name, source.declared_tool_names) == ("n", ("n_a", "n_b"))
    assert McpToolSource("n", server).declared_tool_names == ()


@pytest.mark.long
async def test_selected_and_prefixed_tools_with_policies(tmp_path: Path) -> None:
    policies = {
        "add": ToolPolicy(ToolEffect.READ),
        "read": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE, requires_approval=True),
    }
    async with McpToolSource(
        "notes",
        stdio(tmp_path),
        tools=["add", "read", "put"],
        tool_name_prefix="notes_",
        tool_policies=policies,
        call_timeout=SOON,
    ) as source:
        names = [tool.name for tool in await source.list_tools()]
        assert sorted(names) == ["notes_add", "notes_put", "notes_read"]
        calls = {name: source.build_tool_call(name, {}) for name in names}
        assert calls["notes_add"].effect is ToolEffect.READ
        assert not calls["notes_add"].is_ordered_write
        assert calls["notes_read"].needs_approval
        assert calls["notes_put"].is_ordered_write
        assert source.tool_call_step_options("notes_add").timeout == SOON
        result = await source.execute_deferred_tool_call(execution("notes_add", text="x"))
        assert result.output == {"result": "added x"}
    await no_children()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HttpServer("ftp://x"), "must be an http or https address"),
        (lambda: HttpServer(f"http://me:{SECRET}@x/"), "holds a user name or password"),
        (lambda: McpToolSource("n", NO_SERVER), "must be a StdioServer or HttpServer"),
        (
            lambda: McpToolSource("n", StdioServer("x"), tools="ab"),
            "tools must be a list of texts, got str",
        ),
        (
            lambda: McpToolSource(
                "n", StdioServer("x"), tools=["a"], tool_policies={"b": ToolPolicy(ToolEffect.READ)}
            ),
            "names 'b', which tools does not offer",
        ),
        (
            lambda: McpToolSource("n", StdioServer("x"), connect_timeout=timedelta(0)),
            "connect_timeout must be a whole number",
        ),
    ],
)
def test_refused_arguments(make: Callable[[], Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        make()
    assert SECRET not in str(caught.value)


def test_two_servers_of_one_program_have_names_of_their_own(tmp_path: Path) -> None:
    for name in ("notes.py", "search.py"):
        (tmp_path / name).touch()
    notes = StdioServer("python", ["-u", "secret", "notes.py", "search.py"], cwd=str(tmp_path))
    assert notes.place == "the program python notes.py"
    search = StdioServer("python", [str(tmp_path / "search.py"), "secret"])
    assert search.place == f"the program python {tmp_path}/search.py"
    # No argument but a file is shown, and of a file nothing that is a secret.
    assert StdioServer("python", ["-c", "secret", "x" * 5000]).place == "the program python"
    hidden = StdioServer("python", ["notes.py"], env={"TOKEN": "notes"}, cwd=str(tmp_path))
    assert hidden.place == "the program python ***.py"
    long = "/".join([str(tmp_path), *["."] * 200, "notes.py"])
    assert StdioServer("python", [long]).place.endswith("/./notes.py")
    assert len(StdioServer("python", [long]).place) < 250
