"""SIGTERM, through the command line: what runs may end, nothing new begins, and nothing is lost."""

# mypy: disable-error-code="override"
# The SDK types handlers as synchronous; it takes coroutines too.

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from dex import (
    AsyncContext,
    DexServiceError,
    Flow,
    FlowStatus,
    Step,
    StepDecision,
    StepList,
    go_to,
    graceful_complete,
)

from dex_lite_samples import App, Chain, serve
from support.cli import command, spawn


class Hold(Step[int]):
    """Runs until it is let go."""

    def __init__(self) -> None:
        self.attempts: list[int] = []
        self.runs = asyncio.Event()
        self.may_end = asyncio.Event()

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        self.attempts.append(context.attempt)
        self.runs.set()
        await self.may_end.wait()
        return go_to(Last, input)


class Last(Step[int]):
    def __init__(self) -> None:
        self.runs = 0

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        self.runs += 1
        return graceful_complete(input)


class Holding(Flow[int]):
    def __init__(self) -> None:
        self.hold = Hold()
        self.last = Last()

    def get_steps(self) -> StepList[int]:
        return StepList.start_step(self.hold).other_steps(self.last)


@asynccontextmanager
async def _served(
    folder: Path, grace: str, *flows: Flow[Any]
) -> AsyncIterator[tuple[asyncio.subprocess.Process, App]]:
    """`dex-lite dev` as a process, and an App with a Worker at it."""
    process = await spawn("dev", "--port", "0", "--data", folder / "engine.db", "--grace", grace)
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    app = App(line.split()[3].rstrip(","), folder, flows)
    try:
        await app.start_worker()
        yield process, app
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await app.close()


async def _start_until_refused(app: App, flow: Holding) -> None:
    """The signal needs a moment to arrive where calls are answered."""
    for number in itertools.count():
        await app.client.start_flow(flow, f"late-{number}", 1)


async def test_a_running_step_may_end_and_nothing_new_begins(tmp_path: Path) -> None:
    flow = Holding()
    async with _served(tmp_path, "60", flow) as (process, app):
        await app.client.start_flow(flow, "f", 7)
        await asyncio.wait_for(flow.hold.runs.wait(), 30)
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        assert b"have 60 s to end" in await process.stdout.readline()
        with pytest.raises(DexServiceError, match="takes no new Flows") as caught:
            await _start_until_refused(app, flow)
        assert caught.value.code is grpc.StatusCode.UNAVAILABLE
        assert (await app.client.describe_flow("f")).status is FlowStatus.RUNNING
        flow.hold.may_end.set()
        assert await asyncio.wait_for(process.wait(), 30) == 0
    assert flow.last.runs == 0
    async with serve(tmp_path, flow) as app:
        assert (await app.client.wait_for_flow("f")).single_output(int) == 7
    # The Step ended in its first attempt, although the engine stopped meanwhile.
    assert (flow.hold.attempts, flow.last.runs) == ([1], 1)
    assert (await command("check", tmp_path / "engine.db")).code == 0


async def test_a_step_that_outlasts_the_grace_is_tried_again(tmp_path: Path) -> None:
    flow = Holding()
    async with _served(tmp_path, "0", flow) as (process, app):
        await app.client.start_flow(flow, "f", 7)
        await asyncio.wait_for(flow.hold.runs.wait(), 30)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 30) == 0
    flow.hold.may_end.set()
    async with serve(tmp_path, flow) as app:
        assert (await app.client.wait_for_flow("f")).single_output(int) == 7
    assert flow.hold.attempts == [1, 2]


async def test_backups_under_load_are_whole(tmp_path: Path) -> None:
    """Every copy passes its check and holds what was acknowledged before it was begun."""
    chain = Chain()
    acknowledged: list[str] = []
    is_over = asyncio.Event()

    async def load(app: App, name: str) -> None:
        number = 0
        while not is_over.is_set():
            flow_id = f"{name}-{number}"
            await app.client.start_flow(chain, flow_id, 20)
            await app.client.wait_for_flow(flow_id)
            acknowledged.append(flow_id)
            number += 1

    async with _served(tmp_path, "10", chain) as (process, app):
        loads = [asyncio.create_task(load(app, name)) for name in "abcd"]
        known: list[list[str]] = []
        for number in range(3):
            known.append([*acknowledged])
            copying = await spawn(
                "backup", tmp_path / f"copy{number}.db", "--data", tmp_path / "engine.db"
            )
            _, errors = await copying.communicate()
            assert (copying.returncode, errors) == (0, b"")
        is_over.set()
        await asyncio.gather(*loads)
        assert len(acknowledged) > len(known[-1]) > 0
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 30) == 0
    for number, flow_ids in enumerate(known):
        restored = tmp_path / f"restored{number}"
        restored.mkdir()
        (tmp_path / f"copy{number}.db").rename(restored / "engine.db")
        async with serve(restored, chain, with_worker=False) as app:
            page = await app.client.search_flows("ExecutionStatus = 'Completed'", 1_000)
            assert {entry.flow_id for entry in page.flows} >= set(flow_ids)
