"""``./ci.sh bench``: what a durable turn costs, next to the same turn in plain in-memory ADK.

Engine, Worker and client are three processes; the engine writes with full sync. Each durable turn is preceded by one
plain turn in this process, and the ratio is that of the two medians, so that a slow phase of the machine hits both.
``./ci.sh bench engine`` measures the embedded engine alone.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from dex import AsyncClient, BlobCacheConfig, ClientOptions, Registry, WorkerTarget, open_blob_cache
from google.adk.agents.run_config import RunConfig, StreamingMode  # type: ignore[attr-defined]
from google.adk.runners import InMemoryRunner
from google.genai import types

from bench import engine as engine_bench
from bench.agent import build_agent, build_flow
from dex_agents import AgentSessionClient
from dex_agents.testing import WorkerProcess, private_engine

TURN_TIMEOUT_S = 60.0


class PlainSessions:
    """The same agent in plain ADK, nothing durable."""

    def __init__(self) -> None:
        self._runner = InMemoryRunner(agent=build_agent(), app_name="bench")
        self._count = 0

    async def new(self) -> str:
        """A session with one finished turn."""
        self._count += 1
        session_id = f"plain-{self._count}"
        await self._runner.session_service.create_session(
            app_name="bench", user_id="user", session_id=session_id
        )
        await self.turn(session_id, "hello")
        return session_id

    async def turn(self, session_id: str, text: str) -> None:
        """One turn to its end."""
        async for _ in self._runner.run_async(
            user_id="user",
            session_id=session_id,
            new_message=types.Content(role="user", parts=[types.Part(text=text)]),
            run_config=RunConfig(streaming_mode=StreamingMode.SSE),
        ):
            pass


class DurableSessions:
    """The agent as durable sessions."""

    def __init__(self, client: AgentSessionClient) -> None:
        self._client = client
        self._count = 0

    async def new(self) -> str:
        """A session with one finished turn."""
        self._count += 1
        session_id = f"durable-{self._count}"
        await self._client.start_session(session_id, "hello")
        await self._client.wait_for_turn(session_id, 1, timeout_s=TURN_TIMEOUT_S)
        return session_id

    async def turn(self, session_id: str, text: str, number: int = 2) -> None:
        """One turn to its end."""
        await self._client.send_user_message(session_id, text)
        await self._client.wait_for_turn(session_id, number, timeout_s=TURN_TIMEOUT_S)


async def timed(action: Callable[[], Awaitable[None]]) -> float:
    """Milliseconds that the action took."""
    start = time.perf_counter()
    await action()
    return (time.perf_counter() - start) * 1000


def percentile(values: list[float], share: float) -> float:
    """Nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def measure_turn(
    plain: PlainSessions, durable: DurableSessions, text: str, rounds: int
) -> tuple[list[float], list[float]]:
    """Interleaved turns in new sessions; a tenth of them first, unmeasured."""
    plain_ms: list[float] = []
    durable_ms: list[float] = []
    for index in range(rounds + max(5, rounds // 10)):
        plain_id, durable_id = await plain.new(), await durable.new()
        plain_took = await timed(lambda i=plain_id: plain.turn(i, text))  # type: ignore[misc]
        durable_took = await timed(lambda i=durable_id: durable.turn(i, text))  # type: ignore[misc]
        if index >= max(5, rounds // 10):
            plain_ms.append(plain_took)
            durable_ms.append(durable_took)
    return plain_ms, durable_ms


async def measure_throughput(
    plain: PlainSessions, durable: DurableSessions, sessions: int, turns: int
) -> tuple[float, float]:
    """Turns a second with many sessions at once, one tool each."""
    plain_ids = [await plain.new() for _ in range(sessions)]
    durable_ids = [await durable.new() for _ in range(sessions)]

    async def plain_all(session_id: str) -> None:
        for _ in range(turns):
            await plain.turn(session_id, "call 1")

    async def durable_all(session_id: str) -> None:
        for number in range(turns):
            await durable.turn(session_id, "call 1", number + 2)

    rates = []
    for work in ([plain_all(i) for i in plain_ids], [durable_all(i) for i in durable_ids]):
        start = time.perf_counter()
        await asyncio.gather(*work)
        rates.append(sessions * turns / (time.perf_counter() - start))
    return rates[0], rates[1]


async def measure_growth(
    plain: PlainSessions, durable: DurableSessions, marks: Sequence[int]
) -> dict[int, tuple[float, float]]:
    """One session of each kind, turn by turn; medians of the ten turns that end with each mark."""
    plain_id, durable_id = await plain.new(), await durable.new()
    took: dict[int, tuple[float, float]] = {}
    for number in range(2, max(marks) + 1):
        plain_ms = await timed(lambda: plain.turn(plain_id, "call 1"))
        durable_ms = await timed(lambda n=number: durable.turn(durable_id, "call 1", n))  # type: ignore[misc]
        took[number] = plain_ms, durable_ms
    return {
        mark: (
            statistics.median(took[n][0] for n in range(max(2, mark - 9), mark + 1)),
            statistics.median(took[n][1] for n in range(max(2, mark - 9), mark + 1)),
        )
        for mark in marks
    }


async def main(rounds: int, sessions: int, workers: int, turns: int) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="dex-agents-bench-") as folder:
        data = Path(folder)
        async with private_engine(data / "engine.db") as engine:
            processes = [
                await WorkerProcess.start(
                    "bench.agent:build_flow", server_address=engine.address, data_dir=data
                )
                for _ in range(workers)
            ]
            try:
                flow = build_flow()
                client = AsyncClient(
                    Registry([flow], allow_async_handlers=True),
                    open_blob_cache(BlobCacheConfig(str(data / "cache"), 64 * 1024 * 1024)),
                    ClientOptions(
                        server_address=engine.address, worker_target=WorkerTarget(pull=True)
                    ),
                )
                plain, durable = PlainSessions(), DurableSessions(AgentSessionClient(client, flow))
                print(
                    f"{'turn':<16}{'plain p50':>10}{'p95':>8}{'durable p50':>13}{'p95':>8}{'ratio':>8}"
                )
                for name, text in (("1 tool", "call 1"), ("8 tools", "call 8")):
                    plain_ms, durable_ms = await measure_turn(plain, durable, text, rounds)
                    ratio = statistics.median(durable_ms) / statistics.median(plain_ms)
                    print(
                        f"{name:<16}{statistics.median(plain_ms):>10.1f}"
                        f"{percentile(plain_ms, 0.95):>8.1f}"
                        f"{statistics.median(durable_ms):>13.1f}"
                        f"{percentile(durable_ms, 0.95):>8.1f}{ratio:>8.2f}",
                        flush=True,
                    )
                if turns:
                    marks = sorted({min(turns, mark) for mark in (11, 50, 100, turns)})
                    growth = await measure_growth(plain, durable, marks)
                    for mark, (plain_ms_at, durable_ms_at) in growth.items():
                        print(
                            f"{f'turn {mark}':<16}{plain_ms_at:>10.1f}{'':>8}{durable_ms_at:>13.1f}"
                            f"{'':>8}{durable_ms_at / plain_ms_at:>8.2f}",
                            flush=True,
                        )
                if sessions:
                    slow, fast = await measure_throughput(plain, durable, sessions, 5)
                    print(
                        f"{sessions} sessions at once, {workers} Worker process(es): "
                        f"plain {slow:.0f} turns/s, durable {fast:.0f} turns/s"
                    )
                await client.close()
            finally:
                for process in processes:
                    await process.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=("turns", "engine"), default="turns")
    turns = parser.add_argument_group("turns")
    turns.add_argument("--rounds", type=int, default=100, help="measured turns of each kind")
    turns.add_argument(
        "--turns", type=int, default=200, help="turns of one growing session; 0 leaves it out"
    )
    turns.add_argument("--sessions", type=int, default=64, help="sessions at once; 0 leaves it out")
    turns.add_argument("--workers", type=int, default=1, help="Worker processes")
    alone = parser.add_argument_group("engine")
    alone.add_argument("--steps", type=int, default=1_000, help="Steps of a measured Flow")
    alone.add_argument("--flows", type=int, default=10_000, help="open Flows at most")
    alone.add_argument("--long-steps", type=int, default=10_000, help="Steps of the longest Flow")
    given = parser.parse_args()
    if given.what == "engine":
        asyncio.run(engine_bench.main(given.steps, given.flows, given.long_steps))
    else:
        asyncio.run(main(given.rounds, given.sessions, given.workers, given.turns))
