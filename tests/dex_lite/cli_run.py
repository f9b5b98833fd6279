"""Runs commands of dex-lite as processes against an engine of the test."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMAND = [sys.executable, "-m", "dex_lite"]


@dataclass
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The output as one JSON document."""
        assert self.code == 0, self.err
        return json.loads(self.out)

    def refusal(self, code: int) -> str:
        """The one line on stderr of a command that could not do it."""
        assert (self.code, self.out) == (code, ""), self
        assert self.err.startswith("dex-lite: ")
        assert self.err.count("\n") == 1
        return self.err


async def spawn(*arguments: str | Path, address: str = "", **environment: str) -> Any:
    """The process of a command; its stdout and stderr are pipes."""
    env = {**os.environ, "COLUMNS": "160", "NO_COLOR": "1", "TERM": "dumb", **environment}
    env["DEX_SERVER_ADDRESS"] = address or "127.0.0.1:1"
    return await asyncio.create_subprocess_exec(
        *COMMAND,
        *map(str, arguments),
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def dex_lite(*arguments: str | Path, address: str = "", **environment: str) -> Done:
    """Run a command to its end."""
    process = await spawn(*arguments, address=address, **environment)
    try:
        out, err = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
    return Done(process.returncode, out.decode(), err.decode())
