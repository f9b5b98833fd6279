"""A long life: 10,000 Flows, 100,000 Steps and 1,000 open waits on one engine, without growing slow or fat."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench.engine import EngineBench
from dex_agents.testing import WorkerProcess, private_engine

WAITS = 1_000
STEPS_A_FLOW = 10
FLOWS_A_ROUND = 1_000
ROUNDS = 10
AT_ONCE = 32
# A closed Flow leaves its row in memory, so that its id is known.
MEMORY_A_CLOSED_FLOW = 6 << 10
FILE_A_STEP = 3 << 10


def resident(data: Path) -> int:
    """Bytes of memory that the process behind a data file holds."""
    pid = json.loads(data.with_name(data.name + ".lock").read_text())["pid"]
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1_024
    raise AssertionError("no VmRSS")


def size(data: Path) -> int:
    """Bytes of the data file with its log."""
    return sum(path.stat().st_size for path in data.parent.glob(f"{data.name}*"))


async def run_round(bench: EngineBench) -> None:
    """Many short Flows, some at a time."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with turn:
            assert len(await bench.chain(STEPS_A_FLOW - 1)) == STEPS_A_FLOW - 1

    await asyncio.gather(*(one() for _ in range(FLOWS_A_ROUND)))


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.timeout(1_200)
async def test_soak(tmp_path: Path, record_property: Any) -> None:
    data = tmp_path / "engine.db"
    memory, latency, sizes = [], [], []
    async with private_engine(data) as engine:
        worker = await WorkerProcess.start(
            "bench.engine_flow:build", server_address=engine.address, data_dir=tmp_path
        )
        bench = EngineBench(engine, tmp_path)
        try:
            await bench.open_flows(WAITS)
            for number in range(ROUNDS):
                began = time.perf_counter()
                await run_round(bench)
                took = time.perf_counter() - began
                latency.append(statistics.median(await bench.chain(300)))
                memory.append(resident(data))
                sizes.append(size(data))
                print(
                    f"round {number + 1}: {FLOWS_A_ROUND * STEPS_A_FLOW / took:.0f} Steps/s, "
                    f"Step p50 {latency[-1]:.2f} ms, memory {memory[-1] / 2**20:.1f} MiB, "
                    f"file {sizes[-1] / 2**20:.1f} MiB",
                    flush=True,
                )
            await bench.finish_open()
        finally:
            await bench.client.close()
            await worker.stop(timeout_s=5)
    steps = FLOWS_A_ROUND * STEPS_A_FLOW
    record_property("file_bytes_a_step", (sizes[-1] - sizes[0]) / (steps * (ROUNDS - 1)))
    grown = (memory[-1] - memory[2]) / (FLOWS_A_ROUND * (ROUNDS - 3))
    assert grown < MEMORY_A_CLOSED_FLOW, f"{grown:.0f} bytes of memory a closed Flow"
    early, late = statistics.median(latency[:3]), statistics.median(latency[-3:])
    assert late < early * 1.5, f"a Step took {early:.2f} ms early and {late:.2f} ms late"
    assert sizes[-1] - sizes[0] < FILE_A_STEP * steps * (ROUNDS - 1), sizes
