"""The program of docs/guide/live-events.md beside those of the page about Worker and client."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from google.adk.agents import LlmAgent

from dex_agents.testing import private_engine, session_client
from dex_agents_google_adk import adk_agent_session_flow
from docs.test_code_blocks import read_blocks
from docs.test_two_processes import SCRIPT, write_programs
from support.gemini_server import GeminiServer, say
from support.requirements import REPOSITORY

PAGE = REPOSITORY / "docs" / "guide" / "live-events.md"
WAIT_S = 60.0
# It says how the sessions' data is read; the agent runs in the Worker.
FLOW = adk_agent_session_flow(
    LlmAgent(name="support", model="gemini-2.5-flash"), flow_type="SupportAgent"
)


async def test_the_program_of_the_page_reads_over_a_restart(tmp_path: Path) -> None:
    async with private_engine(tmp_path / "engine.db") as engine:
        with GeminiServer([*SCRIPT, say("Nothing more.")]) as server:
            write_programs(tmp_path, engine.address)
            (program,) = [block for block in read_blocks(PAGE) if block.language == "python"]
            code = program.code.replace("localhost:8801", engine.address)
            (tmp_path / "watch.py").write_text(code)
            env = {
                **os.environ,
                "GOOGLE_API_KEY": "not-a-key",
                "GOOGLE_GEMINI_BASE_URL": server.url,
            }

            async def start(*arguments: str) -> asyncio.subprocess.Process:
                return await asyncio.create_subprocess_exec(
                    sys.executable,
                    *arguments,
                    cwd=tmp_path,
                    env=env,
                    stdout=asyncio.subprocess.PIPE,
                )

            worker, client = await start("worker.py"), await start("client.py")
            out, _ = await asyncio.wait_for(client.communicate(), WAIT_S)
            session_id = out.decode().splitlines()[0].removeprefix("session ")
            watch = await start("watch.py", session_id)
            await seen_to(watch, b"It is refunded.\n")
            await engine.stop()
            await engine.restart()
            async with session_client(FLOW, server_address=engine.address) as sessions:
                await sessions.send_user_message(session_id, "more", message_id="m2")
                # Nothing comes twice.
                assert await seen_to(watch, b"more.\n") == b"Nothing more.\n"
                await sessions.close_session(session_id)
            assert await asyncio.wait_for(watch.wait(), WAIT_S) == 0
            worker.terminate()
            await asyncio.wait_for(worker.wait(), WAIT_S)


async def seen_to(watch: asyncio.subprocess.Process, end: bytes) -> bytes:
    assert watch.stdout is not None
    return await asyncio.wait_for(watch.stdout.readuntil(end), WAIT_S)
