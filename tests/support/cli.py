"""Runs commands of dex-lite against an engine of the test."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from dex_lite._cli import app

_RUNNER = CliRunner()


@dataclass
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The output as one JSON document."""
        assert (self.code, self.err) == (0, "")
        return json.loads(self.out)

    def refusal(self, code: int) -> str:
        """The one line on stderr of a command that could not do it."""
        assert (self.code, self.out) == (code, ""), self
        assert self.err.startswith("dex-lite: ")
        assert self.err.count("\n") == 1
        return self.err


def _environment(address: str) -> dict[str, str]:
    # Port 1 has no server, wherever the tests run.
    return {
        "COLUMNS": "200",
        "NO_COLOR": "1",
        "TERM": "dumb",
        "DEX_SERVER_ADDRESS": address or "127.0.0.1:1",
    }


async def command(*arguments: str | Path, address: str = "", **environment: str) -> Done:
    """Run a command to its end, in a thread: the engine lives in this loop."""
    result = await asyncio.to_thread(
        _RUNNER.invoke,
        app,
        [str(argument) for argument in arguments],
        env={**_environment(address), **environment},
    )
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return Done(result.exit_code, result.stdout, result.stderr)


async def spawn(*arguments: str | Path, address: str = "") -> Process:
    """The process of a command; its stdout and stderr are pipes."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "dex_lite",
        *map(str, arguments),
        env={**os.environ, **_environment(address)},
        stdout=PIPE,
        stderr=PIPE,
    )
