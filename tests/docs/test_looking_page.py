"""The commands and the function of docs/guide/looking-at-a-session.md, on a session that waits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import sys
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent

from dex_agents import AgentSessionClient, ToolEffect, ToolPolicy
from dex_agents.testing import PrivateEngine, private_engine
from dex_agents_google_adk import adk_agent_session_flow
from dex_agents_google_adk.testing import ScriptedModel, tool_call
from docs.test_code_blocks import read_blocks
from support.requirements import REPOSITORY
from support.serving import serve

PAGE = REPOSITORY / "docs" / "guide" / "looking-at-a-session.md"
SESSION = "session-42"
TURN_S = 60.0
MODULES = {"dex-lite": "dex_lite", "dex-agents-session-graph": "dex_agents.session_graph._cli"}


def find_order(order_id: str) -> str:
    """Look an order up."""
    return f"order {order_id}"


def refund_order(order_id: str) -> str:
    """Refund one order."""
    return f"refunded {order_id}"


@contextlib.asynccontextmanager
async def waiting_session(folder: Path) -> AsyncIterator[tuple[PrivateEngine, AgentSessionClient]]:
    """One turn with calls side by side is done, the second one waits for an approval."""
    both = [tool_call("find_order", {"order_id": number}) for number in "78"]
    model = ScriptedModel([both, "Hello.", tool_call("refund_order", {"order_id": "7"})])
    flow = adk_agent_session_flow(
        LlmAgent(name="support", model=model, tools=[find_order, refund_order]),
        flow_type="SupportAgent",
        tool_policies={
            "find_order": ToolPolicy(ToolEffect.READ),
            "refund_order": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE, True),
        },
    )
    async with (
        private_engine(folder / "engine.db") as engine,
        serve(engine.address, flow, folder) as sessions,
    ):
        await sessions.start_session(SESSION, "hi")
        await sessions.wait_for_turn(SESSION, 1, timeout_s=TURN_S)
        await sessions.send_user_message(SESSION, "refund order 7")
        await sessions.wait_until_settled(SESSION, turns_done=2, timeout_s=TURN_S)
        yield engine, sessions


def entry_points(folder: Path) -> Path:
    """What an installed dex-agents names, for commands that run from its sources."""
    described = tomllib.loads((REPOSITORY / "src/dex-agents/pyproject.toml").read_text())
    info = folder / "site" / "dex_agents_of_the_sources-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    lines = [
        line
        for group, named in described["project"]["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in named.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder / "site"


async def output_of(line: str, engine: PrivateEngine, folder: Path) -> str:
    name, *arguments = shlex.split(line.replace("localhost:8801", engine.address))
    call = f"import sys; from {MODULES[name]}{'._cli' * (name == 'dex-lite')} import main; sys.exit(main())"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        call,
        *arguments,
        cwd=folder,
        env={
            **os.environ,
            "DEX_SERVER_ADDRESS": engine.address,
            "PYTHONPATH": os.pathsep.join([*sys.path, str(entry_points(folder))]),
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await asyncio.wait_for(process.communicate(), TURN_S)
    assert process.returncode == 0, f"{line}: {out.decode()}"
    return out.decode()


async def test_the_commands_of_the_page(tmp_path: Path) -> None:
    lines = [
        line
        for block in read_blocks(PAGE)
        if block.language == "bash"
        for line in block.code.splitlines()
    ]
    async with waiting_session(tmp_path) as (engine, _):
        printed = await asyncio.gather(*(output_of(line, engine, tmp_path) for line in lines))
    listed, shown, history, state, tailed, svg, mermaid, flow = printed
    assert SESSION in listed and "running" in listed
    assert "RunModel-1" in shown and "AwaitToolApproval" in shown
    assert "RunModel" in history
    assert "interrupts/t2.1.0" in state
    attributes = json.loads(state)["attributes"]
    assert attributes["header"]["json"]["turn_id"] == "t2"
    assert attributes["interrupts/t2.1.0"]["json"]["tool_name"] == "refund_order"
    assert not [value for value in attributes.values() if "base64" in str(value)]
    assert "base64" not in history and '"message": ' in history
    assert "turn_started" in tailed and len(tailed.splitlines()) == 3
    assert svg == "" and "refund_order" in (tmp_path / "history.svg").read_text()
    assert "refund_order" in mermaid and "waits for approval" in mermaid
    # Three model calls and as many tool calls.
    assert mermaid.count("called by support") == 6
    assert "SupportAgent" in flow


async def test_the_function_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = [block for block in read_blocks(PAGE) if block.language == "python"]
    names: dict[str, Any] = {}
    exec(compile(block.code, str(PAGE), "exec"), names)
    async with waiting_session(tmp_path) as (_, sessions):
        await names["describe"](sessions, SESSION)
    assert capsys.readouterr().out.splitlines() == [
        "waiting open turn: t2",
        "waits for approval of refund_order {'order_id': '7'}",
        "2 model calls in finished turns",
        "t1 user hi",
        "t1 assistant calls find_order {'order_id': '7'}; calls find_order {'order_id': '8'}",
        "t1 tool find_order gave {'result': 'order 7'}; find_order gave {'result': 'order 8'}",
        "t1 assistant Hello.",
    ]
