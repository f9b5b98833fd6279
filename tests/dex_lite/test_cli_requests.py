"""What commands send and how they say what a server answers, at a server made for that."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc
from google.protobuf.empty_pb2 import Empty
from grpc import aio

from support.cli import command


class Recorder(dex_pb2_grpc.FlowServiceServicer):  # type: ignore[misc]
    """Keeps what it was sent. What it does not define, the base class answers as UNIMPLEMENTED."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.authorization: str | None = None

    async def SearchFlows(
        self, request: pb.SearchFlowsRequest, context: Any
    ) -> pb.SearchFlowsResponse:
        self.authorization = dict(context.invocation_metadata()).get("authorization")
        self.requests.append(request)
        page = int(request.next_page_token or "0")
        response = pb.SearchFlowsResponse(next_page_token=str(page + 1) if page < 2 else "")
        row = response.flow_runs.add(
            flow_id=f"order-{page}", run_id="r", flow_type="Order", flow_status="FLOW_STATUS_FAILED"
        )
        row.start_time.FromMilliseconds(1_000)
        row.close_time.FromMilliseconds(3_500)
        row.indexed_attributes.add(key="city").value.string_value = "Bern"
        return response

    async def SkipTimer(self, request: pb.SkipTimerRequest, context: Any) -> Empty:
        self.requests.append(request)
        return Empty()

    async def ResetFlow(self, request: pb.ResetFlowRequest, context: Any) -> pb.ResetFlowResponse:
        self.requests.append(request)
        if request.step_type == "Gone":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no Step of type 'Gone' ran")
        return pb.ResetFlowResponse()

    async def GetFlowSummary(
        self, request: pb.GetFlowSummaryRequest, context: Any
    ) -> pb.GetFlowSummaryResponse:
        summary = pb.GetFlowSummaryResponse(flow_status="FLOW_STATUS_RUNNING", run_attempt=2)
        summary.flow_execution_id.run_id = "r"
        return summary

    async def StopFlow(self, request: pb.StopFlowRequest, context: Any) -> Empty:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no bearer token")
        raise AssertionError


@asynccontextmanager
async def recording() -> AsyncIterator[tuple[Recorder, str]]:
    server, recorder = aio.server(), Recorder()
    dex_pb2_grpc.add_FlowServiceServicer_to_server(recorder, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield recorder, f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_list_reads_pages_up_to_its_limit() -> None:
    async with recording() as (server, address):
        rows = (
            await command("flow", "list", "--query", "city = 'Bern'", "--json", address=address)
        ).json
        assert [row["flow_id"] for row in rows] == ["order-0", "order-1", "order-2"]
        assert rows[0]["status"] == "failed"
        assert rows[0]["start_time"] == "1970-01-01T00:00:01.000Z"
        assert rows[0]["attributes"] == {"city": "Bern"}
        assert server.requests[0].query == "city = 'Bern'"
        rows = (await command("flow", "list", "--limit", "2", "--json", address=address)).json
        assert len(rows) == 2
        done = await command("flow", "list", "--limit", "1", address=address)
        heads, row = done.out.splitlines()
        assert heads.split()[:2] == ["Flow", "id"]
        assert row.split()[:3] == ["order-0", "Order", "failed"]
        assert row.rstrip().endswith('2.5 s  city="Bern"')


async def test_the_token_is_sent() -> None:
    async with recording() as (server, address):
        await command("flow", "list", address=address)
        assert server.authorization is None
        await command("flow", "list", "--token", "secret", address=address)
        assert server.authorization == "Bearer secret"
        await command("flow", "list", address=address, DEX_TOKEN="other")
        assert server.authorization == "Bearer other"
        line = (await command("flow", "stop", "f", address=address)).refusal(1)
        assert "no bearer token" in line
        assert "--token or DEX_TOKEN" in line


async def test_skip_timer() -> None:
    async with recording() as (server, address):
        for arguments in (["--timer", "remind"], ["--index", "2"], []):
            done = await command("flow", "skip-timer", "f", "Wait-1", *arguments, address=address)
            assert done.code == 0, done.err
        named, numbered, first = server.requests
        assert (named.flow_id, named.step_execution_id) == ("f", "Wait-1")
        assert named.timer_condition_id == "remind"
        assert (numbered.timer_condition_id, numbered.timer_condition_index) == ("", 2)
        assert first.timer_condition_index == 0
        done = await command(
            "flow", "skip-timer", "f", "Wait-1", "--timer", "a", "--index", "1", address=address
        )
        assert "Leave one out" in done.refusal(2)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--beginning"], {"reset_type": pb.FLOW_RESET_TYPE_BEGINNING}),
        (
            ["--time", "2026-01-31T08:00:00Z"],
            {
                "reset_type": pb.FLOW_RESET_TYPE_HISTORY_EVENT_TIME,
                "history_event_time": "2026-01-31T08:00:00Z",
            },
        ),
        (
            ["--step-type", "Ship", "--skip-writes"],
            {
                "reset_type": pb.FLOW_RESET_TYPE_STEP_TYPE,
                "step_type": "Ship",
                "skip_writes_reapply": True,
            },
        ),
        (
            ["--step", "Ship-2", "--method", "execute", "--run-attempt", "1", "--reason", "why"],
            {
                "reset_type": pb.FLOW_RESET_TYPE_STEP_EXECUTION_ID,
                "step_execution_id": "Ship-2",
                "step_method": pb.FLOW_RESET_STEP_METHOD_EXECUTE,
                "run_attempt": 1,
                "reason": "why",
            },
        ),
    ],
)
async def test_reset(arguments: list[str], expected: dict[str, Any]) -> None:
    async with recording() as (server, address):
        done = await command("flow", "reset", "f", *arguments, address=address)
    assert (done.code, done.out) == (0, "f goes on as attempt 2\n")
    assert server.requests == [pb.ResetFlowRequest(flow_id="f", **expected)]


async def test_reset_is_refused() -> None:
    async with recording() as (server, address):
        line = (
            await command("flow", "reset", "f", "--step-type", "Gone", address=address)
        ).refusal(1)
        assert "no Step of type 'Gone' ran" in line
        server.requests.clear()
        for arguments, told in (
            ([], "exactly one"),
            (["--beginning", "--step", "A-1"], "exactly one"),
            (["--beginning", "--method", "execute"], "--method needs --step"),
            (["--time", "yesterday"], "2026-01-31T08:00:00Z"),
            (["--time", "2026-01-31T08:00:00"], "with an offset"),
        ):
            done = await command("flow", "reset", "f", *arguments, address=address)
            assert told in done.refusal(2)
        assert server.requests == []


async def test_what_a_server_does_not_support() -> None:
    async with recording() as (_, address):
        line = (await command("flow", "state", "f", address=address)).refusal(1)
    assert "cannot do this" in line
    assert "Upgrade the server" in line


async def test_no_server() -> None:
    line = (await command("flow", "list")).refusal(3)
    assert "127.0.0.1:1" in line
    assert "`dex-lite dev`" in line
    assert "--address or DEX_SERVER_ADDRESS" in line


@pytest.mark.parametrize("address", ["localhost", "host:", ":8801", "host:99999", "host:x"])
async def test_odd_addresses(address: str) -> None:
    done = await command("flow", "list", "--address", address)
    assert "Give one such as 127.0.0.1:8801" in done.refusal(2)


@pytest.mark.parametrize("address", ["http://127.0.0.1:8801", "grpc://127.0.0.1:8801/x"])
async def test_an_address_with_a_scheme(address: str) -> None:
    line = (await command("flow", "list", "--address", address)).refusal(2)
    assert f"Leave {address.partition('127')[0]!r} out" in line
    assert line.endswith(": 127.0.0.1:8801\n")


async def test_wrong_usage() -> None:
    assert (await command("flow", "show")).code == 2
    assert (await command("flow", "stop", "f", "--as", "pause")).code == 2
    assert "--graph" in (await command("flow", "show", "f", "--out", "x")).refusal(2)
    assert "exclude" in (await command("flow", "show", "f", "--graph", "svg", "--json")).refusal(2)


async def test_completion_can_be_shown() -> None:
    done = await command("--help")
    assert "--install-completion" in done.out
    assert "Exit codes" in done.out


async def test_words_are_completed() -> None:
    """As the shell asks for it, with the name of the installed script."""
    script = "import sys; sys.argv[0] = 'dex-lite'; from dex_lite._cli._app import main; main()"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script),
        env={
            **os.environ,
            "_DEX_LITE_COMPLETE": "complete_bash",
            "COMP_WORDS": "dex-lite flow s",
            "COMP_CWORD": "2",
        },
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    assert sorted(out.decode().split()) == ["show", "skip-timer", "state", "stop"]
