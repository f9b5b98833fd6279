"""Workers that break every rule of the frames: the engine keeps all of its own.

``FRAMES_SEED=<seed>`` replays one schedule. The seed fixes what the Workers do, not when frames arrive.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc

import dex_lite
from support.bad_worker import FORGED, ONCE, BadWorker, Books, options

STEPS_A_FLOW = 5
FLOWS_A_SEED = 12
REPLAY = os.environ.get("FRAMES_SEED")


async def play(stub: Any, address: str, seed: int) -> Counter[str]:
    """One schedule: a few bad Workers and the Flows of a type of their own."""
    chance = random.Random(seed)
    flow_type = f"Flow{seed}"
    books = Books(STEPS_A_FLOW)
    workers = [
        BadWorker(
            address, f"worker-{seed}-{number}", flow_type, books, random.Random(seed * 10 + number)
        )
        for number in range(3)
    ]
    for worker in workers:
        worker.start(chance.randint(2, 5))
    flow_ids = [f"{seed}-{number}" for number in range(FLOWS_A_SEED)]
    try:
        for flow_id in flow_ids:
            await stub.StartFlow(
                pb.StartFlowRequest(
                    flow_id=flow_id,
                    flow_type=flow_type,
                    start_step_type=ONCE,
                    step_input=pb.Value(string_value=""),
                    step_options=options(chance, ONCE),
                    request_id=flow_id,
                )
            )
        for flow_id in flow_ids:
            check_flow(flow_id, await result(stub, flow_id), books)
    finally:
        for worker in workers:
            await worker.close()
    once = {d.key for d in books.deliveries.values() if d.step_type == ONCE}
    assert all(books.ran[key] <= 1 for key in once), "a single-attempt Step ran twice"
    return books.behaviours


async def result(stub: Any, flow_id: str) -> list[str]:
    """The names of the attempts that counted."""
    request = pb.WaitForFlowRequest(flow_id=flow_id, needs_results=True, wait_time_seconds=60)
    answer = await stub.WaitForFlow(request)
    assert answer.flow_status == pb.FLOW_STATUS_COMPLETED, answer
    (output,) = answer.results
    return str(output.completed_step_output.string_value).split(",")


def check_flow(flow_id: str, tokens: list[str], books: Books) -> None:
    """Each Step was completed by one real attempt of it."""
    assert FORGED not in tokens, f"{flow_id}: a result counted that should have been refused"
    assert len(tokens) == len(set(tokens)) == STEPS_A_FLOW, f"{flow_id}: {tokens}"
    counted = [books.deliveries[token] for token in tokens]
    assert {delivery.flow_id for delivery in counted} == {flow_id}
    assert len({delivery.step for delivery in counted}) == STEPS_A_FLOW
    for number, delivery in enumerate(counted):
        assert delivery.so_far == ",".join(tokens[:number])


async def play_all(tmp_path: Path, seeds: range, at_once: int) -> Counter[str]:
    """Play the seeds on one engine, so many at the same time, and see that it is well afterwards."""
    total: Counter[str] = Counter()
    turn = asyncio.Semaphore(at_once)
    async with (
        dex_lite.open_engine(tmp_path / "engine.db") as engine,
        grpc.aio.insecure_channel(engine.address) as channel,
    ):
        stub: Any = dex_pb2_grpc.FlowServiceStub(channel)

        async def one(seed: int) -> None:
            async with turn:
                try:
                    total.update(await play(stub, engine.address, seed))
                except Exception as error:
                    raise AssertionError(f"FRAMES_SEED={seed}: {error!r}") from error

        async with asyncio.TaskGroup() as group:
            for seed in [int(REPLAY)] if REPLAY else seeds:
                group.create_task(one(seed))
        states = [
            await stub.GetFlowSummary(pb.GetFlowSummaryRequest(flow_id=f"{seed}-0"))
            for seed in ([int(REPLAY)] if REPLAY else seeds)
        ]
        assert len(states) == (1 if REPLAY else len(seeds))
    return total


def check_log(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a Worker does is none of the engine's errors."""
    errors = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert not errors, errors[:3]


async def test_bad_workers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    behaviours = await play_all(tmp_path, range(8), at_once=8)
    check_log(caplog)
    assert REPLAY or len(behaviours) >= 14, f"too few kinds of faults: {behaviours}"


@pytest.mark.long
@pytest.mark.parametrize("first_seed", range(1_000, 1_400, 40))
async def test_bad_workers_long(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first_seed: int
) -> None:
    await play_all(tmp_path, range(first_seed, first_seed + 40), at_once=8)
    check_log(caplog)
