"""The README's sample with ADK's real Gemini class, only the addresses changed."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

from dex_agents.testing import private_engine, read_step_history, step_shape
from support.gemini_server import Answer, GeminiServer, call_part, say
from support.requirements import REPOSITORY

SCRIPT = [
    Answer([[call_part("search_orders", customer_id="9")]]),
    Answer([[call_part("refund_order", order_id="7")]]),
    say("Order 7 ", "is refunded."),
]


def sample() -> str:
    """The first Python block of the README."""
    found = re.search(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    assert found is not None
    return found[1]


async def start_sample(folder: Path, address: str, **env: str) -> asyncio.subprocess.Process:
    program = folder / "sample.py"
    program.write_text(sample().replace("localhost:8801", address))
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(program),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "GOOGLE_API_KEY": "not-a-key", **env},
    )


async def test_the_readme_sample_runs_against_gemini(tmp_path: Path) -> None:
    async with private_engine(tmp_path / "engine.db") as engine:
        with GeminiServer(SCRIPT) as server:
            process = await start_sample(
                tmp_path, engine.address, GOOGLE_GEMINI_BASE_URL=server.url
            )
            out, errors = await asyncio.wait_for(process.communicate(), 60)
            assert process.returncode == 0, errors.decode()
            assert out.decode().splitlines() == [
                "approve refund_order {'order_id': '7'}",
                "Order 7 is refunded.",
            ]
            assert len(server.requests) == 3
            stored = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
            assert b"not-a-key" not in stored
            told = server.requests[2].body["contents"][-1]["parts"][0]["functionResponse"]
            key = re.fullmatch(
                r"refund for order 7 created with key (.*)", told["response"]["result"]
            )
            assert key is not None
            # Each run has a session of its own.
            named = re.fullmatch(r"(support-[0-9a-f-]{36})/t1/adk-[0-9a-f-]{36}", key[1])
            assert named is not None
            assert named[1].encode() in stored
        assert step_shape(await read_step_history(engine.address, named[1])) == [
            "AwaitUserMessage",
            "RunModel",
            "CallTool",
            "ResumeTurn",
            "RunModel",
            "AwaitToolApproval",
            "CallTool",
            "ResumeTurn",
            "RunModel",
        ]


async def test_the_readme_sample_without_an_engine_says_so_in_a_line(tmp_path: Path) -> None:
    process = await start_sample(tmp_path, "127.0.0.1:9")
    out, errors = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, out) == (1, b"")
    (line,) = errors.decode().splitlines()
    assert line.startswith("the engine at 127.0.0.1:9 (the client's server_address")
    assert line.endswith("start one, for example with dex-lite dev, or call again")


async def test_the_readme_sample_without_a_key_says_so_in_a_line(tmp_path: Path) -> None:
    async with private_engine(tmp_path / "engine.db") as engine:
        process = await start_sample(tmp_path, engine.address, GOOGLE_API_KEY="")
        out, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    (logged,) = errors.decode().splitlines()
    (printed,) = out.decode().splitlines()
    assert printed.startswith("the Worker has no API key or credentials for the model; ")
    assert re.fullmatch(r"turn t1 of session support-[0-9a-f-]{36} failed: (.*)", logged)
    assert logged.endswith(printed)
