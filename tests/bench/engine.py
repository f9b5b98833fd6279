"""``./ci.sh bench engine``: what the embedded engine itself costs, next to its goals.

Engine, Worker and client are three processes; the engine writes with full sync.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc.aio
from dex import AsyncClient, BlobCacheConfig, ClientOptions, Registry, open_blob_cache
from dex.dexpb import dex_pb2_grpc
from google.protobuf.empty_pb2 import Empty

from bench.engine_flow import build
from dex_agents.testing import PrivateEngine, WorkerProcess, private_engine

_PARALLEL_FLOWS = 16
_STARTS_AT_ONCE = 64
_TRIES = 5
# The engine takes streams back that a burst of starts left with the Worker; see its matcher.
_AFTER_BURST_S = 20.0


def percentile(values: list[float], share: float) -> float:
    """Nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def report(what: str, value: float, unit: str, goal: float | None = None) -> None:
    """One row of the table."""
    verdict = "" if goal is None else f"{goal:>8g} {'ok' if value <= goal else 'MISSED'}"
    print(f"{what:<44}{value:>10.2f} {unit:<9}{verdict}", flush=True)


class EngineBench:
    """The measurements, in the order in which the file grows."""

    def __init__(self, engine: PrivateEngine, folder: Path) -> None:
        self._engine = engine
        self.hops, self.waiting = build()
        self.client = AsyncClient(
            Registry([self.hops, self.waiting], allow_async_handlers=True),
            open_blob_cache(BlobCacheConfig(str(folder / "cache"), 16 << 20)),
            ClientOptions(server_address=engine.address),
        )
        self._chains = 0
        self._open = 0

    async def chain(self, steps: int) -> list[float]:
        """Milliseconds from the begin of one Step to the begin of the next, in order."""
        self._chains += 1
        flow_id = f"chain-{self._chains}"
        await self.client.start_flow(self.hops, flow_id, steps)
        output = (await self.client.wait_for_flow(flow_id)).single_output(str)
        began = [int(text) for text in output.split()]
        return [(b - a) / 1_000 for a, b in itertools.pairwise(began)]

    async def open_flows(self, count: int) -> float:
        """Bring the number of open Flows to this; how many were started a second."""
        turn = asyncio.Semaphore(_STARTS_AT_ONCE)

        async def start(number: int) -> None:
            async with turn:
                await self.client.start_flow(self.waiting, f"open-{number}", None)

        began = time.perf_counter()
        await asyncio.gather(*(start(number) for number in range(self._open, count)))
        rate = (count - self._open) / (time.perf_counter() - began)
        self._open = count
        await self.chain(500)  # until they all wait
        return rate

    async def finish_open(self) -> None:
        """End the open Flows: all of them still answer."""
        turn = asyncio.Semaphore(_STARTS_AT_ONCE)
        finish: Any = getattr(self.waiting, "finish")  # noqa: B009

        async def end(flow_id: str) -> None:
            async with turn:
                await self.client.invoke_rpc(finish, flow_id, None)
                result = await self.client.wait_for_flow(flow_id)
                assert result.single_output(int) == 1

        await asyncio.gather(*(end(f"open-{number}") for number in range(self._open)))
        self._open = 0

    async def step(self, steps: int) -> None:
        """The Step round trip of one Flow."""
        await self.chain(300)
        times = await self.chain(steps)
        report("Step round trip, one Flow, p50", statistics.median(times), "ms", 1.5)
        report("Step round trip, one Flow, p99", percentile(times, 0.99), "ms", 5)

    async def throughput(self, steps: int) -> None:
        """Steps a second of many Flows."""
        start = time.perf_counter()
        await asyncio.gather(*(self.chain(steps) for _ in range(_PARALLEL_FLOWS)))
        took = time.perf_counter() - start
        report(f"{_PARALLEL_FLOWS} Flows at once", _PARALLEL_FLOWS * steps / took, "Steps/s")

    async def rpc(self, calls: int) -> None:
        """A read-only RPC."""
        read: Any = getattr(self.waiting, "read")  # noqa: B009
        times = []
        for _ in range(calls + 50):
            start = time.perf_counter()
            await self.client.invoke_rpc(read, "open-0", None)
            times.append((time.perf_counter() - start) * 1_000)
        report("read-only RPC, p50", statistics.median(times[50:]), "ms", 2)

    async def long_flow(self, steps: int) -> None:
        """Whether a Step costs more late in a long Flow."""
        times = await self.chain(steps)
        window = max(10, steps // 20)
        early, late = statistics.median(times[10 : 10 + window]), statistics.median(times[-window:])
        report(f"Step after 10 Steps, p50 of {window}", early, "ms")
        report(f"Step after {steps} Steps", late, "ms")
        report(f"{steps} Steps : 10 Steps", late / early, "times", 1.3)

    async def many_flows(self, flows: int, steps: int) -> None:
        """Whether a Step costs more with many open Flows."""
        await self.open_flows(10)
        few = await self._quiet(steps)
        rate = await self.open_flows(flows)
        await asyncio.sleep(_AFTER_BURST_S)
        many = await self._quiet(steps)
        report("Flows started", rate, "Flows/s")
        report("Step at 10 open Flows, p50", few, "ms")
        report(f"Step at {flows} open Flows, p50", many, "ms")
        report(f"{flows} open Flows : 10", many / few, "times", 1.3)

    async def _quiet(self, steps: int) -> float:
        """The best median of a few: a ratio is of little worth if a busy machine is in one of its halves."""
        medians = [statistics.median(await self.chain(steps)) for _ in range(_TRIES)]
        return min(medians)

    async def restart(self) -> None:
        """A start on the file of an engine that was killed."""
        await self._engine.kill()
        start = time.perf_counter()
        await self._engine.restart()
        async with grpc.aio.insecure_channel(self._engine.address) as channel:
            stub: Any = dex_pb2_grpc.FlowServiceStub(channel)
            await stub.HealthCheck(Empty(), wait_for_ready=True)
        report(f"start with {self._open} open Flows", time.perf_counter() - start, "s", 3)


async def main(steps: int, flows: int, long_steps: int) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="dex-lite-bench-") as folder:
        data = Path(folder)
        async with private_engine(data / "engine.db") as engine:
            worker = await WorkerProcess.start(
                "bench.engine_flow:build", server_address=engine.address, data_dir=data
            )
            bench = EngineBench(engine, data)
            try:
                print(f"{'':<44}{'':>10} {'':<9}{'goal':>8}")
                await bench.step(steps)
                await bench.throughput(max(50, steps // 5))
                await bench.long_flow(long_steps)
                await bench.many_flows(flows, steps)
                await bench.rpc(steps // 2)
                size = sum(f.stat().st_size for f in data.glob("engine.db*")) / 2**20
                report("size of the data file", size, "MiB")
                await bench.restart()
            finally:
                await bench.client.close()
                await worker.stop(timeout_s=5)
