"""Runs commands of dex-lite against an engine of the test, and gives them something to show."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc
from grpc import aio
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


async def write_stream(address: str, flow_id: str, flow_type: str, text: str) -> None:
    """Put a message in the Stream ``tokens`` of a Flow, which need not have declared it."""
    request = pb.WriteStreamRequest(
        flow_id=flow_id,
        flow_type=flow_type,
        stream_name="tokens",
        source="test",
        stream_capacity_bytes=10_000,
    )
    request.value.string_value = text
    async with aio.insecure_channel(address) as channel:
        stub: Any = dex_pb2_grpc.FlowServiceStub(channel)
        await stub.WriteStream(request)
