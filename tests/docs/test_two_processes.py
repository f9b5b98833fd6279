"""The programs of docs/guide/two-processes.md, with nothing but the address changed."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from dex_agents.testing import private_engine
from docs.test_code_blocks import read_blocks
from support.gemini_server import Answer, GeminiServer, call_part, say
from support.requirements import REPOSITORY

PAGE = REPOSITORY / "docs" / "guide" / "two-processes.md"
SCRIPT = [Answer([[call_part("refund_order", order_id="7")]]), say("It is refunded.")]


def write_programs(folder: Path, address: str) -> None:
    """Each Python block under the name in its first line."""
    for block in read_blocks(PAGE):
        if block.language != "python":
            continue
        name = block.code.partition("\n")[0].removeprefix("# ")
        (folder / name).write_text(block.code.replace("localhost:8801", address))


@pytest.mark.parametrize("served", ["support_app:build_flow", "desk_app:build_flows"])
async def test_worker_and_client_run_as_the_page_says(tmp_path: Path, served: str) -> None:
    async with private_engine(tmp_path / "engine.db") as engine:
        with GeminiServer(SCRIPT) as server:
            write_programs(tmp_path, engine.address)
            program = (tmp_path / "worker.py").read_text()
            assert "support_app:build_flow" in program
            (tmp_path / "worker.py").write_text(program.replace("support_app:build_flow", served))
            env = {
                **os.environ,
                "GOOGLE_API_KEY": "not-a-key",
                "GOOGLE_GEMINI_BASE_URL": server.url,
            }
            worker = await asyncio.create_subprocess_exec(
                sys.executable, "worker.py", cwd=tmp_path, env=env
            )
            client = await asyncio.create_subprocess_exec(
                sys.executable, "client.py", cwd=tmp_path, env=env, stdout=asyncio.subprocess.PIPE
            )
            out, _ = await asyncio.wait_for(client.communicate(), 90)
            assert client.returncode == 0
            started, *lines = out.decode().splitlines()
            assert re.fullmatch(r"session support-[0-9a-f-]{36}", started)
            assert lines == [
                "approve refund_order {'order_id': '7'}",
                "It is refunded.",
            ]
            worker.terminate()
            assert await asyncio.wait_for(worker.wait(), 30) == 0
