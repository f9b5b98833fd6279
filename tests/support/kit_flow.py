"""A Flow for the tests of the Worker helper and the testing kit, served from other processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

from dex import (
    AsyncClient,
    AsyncContext,
    BlobCacheConfig,
    ClientOptions,
    Flow,
    Registry,
    RetryPolicy,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    StepOptions,
    Timer,
    Wait,
    WorkerTarget,
    go_to,
    go_to_many,
    graceful_complete,
    open_blob_cache,
)

from dex_agents import _failpoints
from dex_agents.testing import Ledger, PrivateEngine

AFTER_WORK = "kit.after_work"
NOISE_ENV = "KIT_NOISE_BYTES"


class Begin(Step[float]):
    """Waits for a timer, then works for the given seconds."""

    async def wait_for(  # type: ignore[override]
        self, context: AsyncContext, input: float
    ) -> Wait:
        return Wait.all_of(Timer.by_duration(timedelta(seconds=0)))

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: float
    ) -> StepDecision:
        return go_to(Work, input)


class Work(Step[float]):
    """Writes what it did into the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: float
    ) -> StepDecision:
        self._ledger.record("began", pid=os.getpid())
        print("x" * int(os.environ.get(NOISE_ENV, "0")), flush=True)
        await asyncio.sleep(input)
        self._ledger.record("worked", pid=os.getpid())
        _failpoints.reach(AFTER_WORK)
        once = StepOptions(execute_retry=RetryPolicy(maximum_attempts=1))
        return go_to_many(
            StepMovement(Refuse, "no", once.on_execute_failure_proceed_to(Rescue, StepOptions()))
        )


class Refuse(Step[str]):
    """Fails."""

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: str
    ) -> StepDecision:
        raise ValueError("this Step refuses")


class Rescue(Step[str]):
    """Ends the Flow after the failure."""

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: str
    ) -> StepDecision:
        return graceful_complete(input)


class KitFlow(Flow[float]):
    """Begin, Work, Refuse, Rescue."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def get_steps(self) -> StepList[float]:
        return StepList.start_step(Begin()).other_steps(Work(self._ledger), Refuse(), Rescue())


def build_flow(data_dir: Path) -> KitFlow:
    """For a Worker with a data folder."""
    return KitFlow(Ledger(data_dir / "ledger.jsonl"))


def build_flows() -> list[KitFlow]:
    """For a Worker without one; the environment has it."""
    return [build_flow(Path(os.environ["KIT_DATA_DIR"]))]


def die() -> KitFlow:
    """A function that fails."""
    raise LookupError("nothing to serve here")


@contextlib.asynccontextmanager
async def kit_client(
    engine: PrivateEngine, folder: Path
) -> AsyncIterator[tuple[AsyncClient, KitFlow]]:
    """A client of the Flow that other processes serve."""
    flow = build_flow(folder)
    cache = open_blob_cache(BlobCacheConfig(str(folder / "client-cache"), 1 << 20))
    client = AsyncClient(
        Registry([flow], allow_async_handlers=True),
        cache,
        ClientOptions(server_address=engine.address, worker_target=WorkerTarget(pull=True)),
    )
    try:
        yield client, flow
    finally:
        await client.close()
        cache.close()
