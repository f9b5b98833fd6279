"""A disk that fills up under a running engine: whatever was acknowledged is there afterwards."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import grpc
import grpc.aio
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc

import dex_lite

FILE_LIMIT_KIB = 512


def _start(number: int) -> pb.StartFlowRequest:
    request = pb.StartFlowRequest(
        flow_id=f"f{number}", flow_type="Nobody", request_id=f"r{number}", start_step_type="Step"
    )
    request.step_input.string_value = "x" * 4_000
    return request


async def test_nothing_acknowledged_is_lost_when_the_disk_is_full(tmp_path: Path) -> None:
    path = tmp_path / "engine.db"
    # A limit on the size of any file the process writes stands in for a full disk.
    engine = await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        f'ulimit -f {FILE_LIMIT_KIB}; exec "$0" -m dex_lite dev --data "$1" --port 0',
        sys.executable,
        str(path),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert engine.stdout is not None
    ready = (await asyncio.wait_for(engine.stdout.readline(), 30)).decode()
    address = ready.split(" on ")[1].split(",")[0]
    acknowledged = []
    refusal = None
    async with grpc.aio.insecure_channel(address) as channel:
        stub = dex_pb2_grpc.FlowServiceStub(channel)
        for number in range(5_000):
            try:
                await stub.StartFlow(_start(number))
            except grpc.aio.AioRpcError as error:
                refusal = error
                break
            acknowledged.append(f"f{number}")
    _, errors = await asyncio.wait_for(engine.communicate(), 30)
    assert refusal is not None
    assert refusal.code() is grpc.StatusCode.UNAVAILABLE
    assert engine.returncode == 1
    assert str(path) in errors.decode()
    assert "could not be written" in errors.decode()
    assert len(acknowledged) > 10

    async with (
        dex_lite.open_engine(path) as again,
        grpc.aio.insecure_channel(again.address) as channel,
    ):
        stub = dex_pb2_grpc.FlowServiceStub(channel)
        for flow_id in acknowledged:
            summary = await stub.GetFlowSummary(pb.GetFlowSummaryRequest(flow_id=flow_id))
            assert summary.flow_status == pb.FLOW_STATUS_RUNNING
