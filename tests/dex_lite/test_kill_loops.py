"""Engine and Workers are real processes and are killed again and again; a ledger says what really ran.

``KILL_SEED=<seed>`` replays the choice of kills and pauses.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from dex import FlowStatus
from dex.dexpb import dex_pb2_grpc
from google.protobuf.empty_pb2 import Empty

from dex_agents.testing import Ledger, PrivateEngine, WorkerProcess, private_engine
from dex_lite_samples import App
from support.kill_flow import STEPS, build

SEED = int(os.environ.get("KILL_SEED", "1"))


class Loop:
    """One engine, two Worker processes, and clients that go on through every kill."""

    def __init__(self, folder: Path, engine: PrivateEngine, seed: int) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.engine = engine
        self.chain, self.mailbox = build(folder)
        self.app = App(engine.address, folder, [self.chain, self.mailbox])
        self.workers: list[WorkerProcess] = []
        self.chains: list[str] = []
        self.acknowledged: list[str] = []
        self.tried = 0

    async def start_worker(self) -> None:
        """One more Worker process."""
        worker = await WorkerProcess.start(
            "support.kill_flow:build", server_address=self.engine.address, data_dir=self.folder
        )
        self.workers.append(worker)

    async def send(self) -> None:
        """Send messages for ever, and remember those that were acknowledged."""
        while True:
            self.tried += 1
            text = f"m{self.tried}"
            try:
                async with asyncio.timeout(20):
                    await self.app.call(getattr(self.mailbox, "send"), "mailbox", text)  # noqa: B009
            except Exception:
                await self.connected()  # whether it counted is unknown
            else:
                self.acknowledged.append(text)
            await asyncio.sleep(0.002)

    async def connected(self) -> None:
        """Wait until the engine answers again."""
        while True:
            async with grpc.aio.insecure_channel(self.engine.address) as channel:
                stub: Any = dex_pb2_grpc.FlowServiceStub(channel)
                # It may be killed again right then.
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await stub.HealthCheck(Empty(), wait_for_ready=True, timeout=60)
                    return

    async def start_chains(self, count: int) -> None:
        """A few more Flows that count."""
        for _ in range(count):
            self.chains.append(f"chain-{len(self.chains)}")
            await self.app.client.start_flow(self.chain, self.chains[-1], 0)

    async def kill_one(self) -> None:
        """Kill the engine, a Worker or both, in the midst of the work, and start them again."""
        await asyncio.sleep(self.chance.random() * 0.4)
        is_engine, is_worker = self.chance.choice(((True, False), (False, True), (True, True)))
        if is_worker:
            worker = self.workers.pop(self.chance.randrange(len(self.workers)))
            worker.kill()
            await worker.wait()
        if is_engine:
            await self.engine.kill()
            await self.engine.restart()
            await self.connected()
        if is_worker:
            await self.start_worker()

    async def finish(self) -> None:
        """Let everything end, and check it."""
        for flow_id in self.chains:
            result = await self.app.client.wait_for_flow(flow_id)
            assert (result.status, result.single_output(int)) == (FlowStatus.COMPLETED, STEPS)
        await self.app.call(getattr(self.mailbox, "send"), "mailbox", "end")  # noqa: B009
        got = (await self.app.client.wait_for_flow("mailbox")).single_output(str).split()
        assert len(got) == len(set(got)), "a message was taken twice"
        assert set(self.acknowledged) <= set(got), "an acknowledged message is lost"
        kept = set(self.acknowledged)
        assert [text for text in got if text in kept] == self.acknowledged, "the order changed"
        self.check_ledger()

    def check_ledger(self) -> None:
        """What ran is what should have run."""
        entries = Ledger(self.folder / "ledger").entries()
        for name in ("once", "rescue", "again"):
            ran = Counter((e["flow"], e["number"]) for e in entries if e["name"] == name)
            if name == "once":
                assert set(ran.values()) == {1}, "a single-attempt Step ran twice"
            elif name == "again":
                wanted = {(flow, n) for flow in self.chains for n in range(STEPS + 1)}
                assert set(ran) == wanted, "a Step was left out"
        for flow in self.chains:
            numbers = [e["number"] for e in entries if e["flow"] == flow and e["name"] == "again"]
            assert numbers == sorted(numbers), "a finished Step ran again"

    async def close(self) -> None:
        """Stop everything."""
        await self.app.close()
        for worker in self.workers:
            worker.kill()
            await worker.wait()


async def run(folder: Path, seed: int, kills: int, for_s: float = 0.0) -> int:
    """So many kills, and more until the time is over; how many there were."""
    until = time.monotonic() + for_s
    async with private_engine(folder / "engine.db") as engine:
        loop = Loop(folder, engine, seed)
        sending: asyncio.Task[None] | None = None
        done = 0
        try:
            await asyncio.gather(loop.start_worker(), loop.start_worker())
            await loop.app.client.start_flow(loop.mailbox, "mailbox", None)
            sending = asyncio.create_task(loop.send())
            while done < kills or time.monotonic() < until:
                await loop.start_chains(4)
                await loop.kill_one()
                done += 1
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending
            await loop.finish()
            assert len(loop.acknowledged) > 5 * kills
        except AssertionError as error:
            raise AssertionError(f"KILL_SEED={seed}, {done} kills: {error}") from error
        finally:
            if sending is not None:
                sending.cancel()
            await loop.close()
    return done


async def test_kills(tmp_path: Path) -> None:
    assert await run(tmp_path, SEED, kills=4) == 4


@pytest.mark.long
async def test_kills_for_minutes(tmp_path: Path) -> None:
    assert await run(tmp_path, SEED + 1, kills=30, for_s=180.0) >= 30
